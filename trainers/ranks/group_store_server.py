"""Server of the store with which process groups form. Does not import torch, so that its process starts at once.

torch's own TCPStore answers any client. Here, client and server first prove that they know a secret: each sends 16
random bytes, s and c, and receives HMAC-SHA256(secret, side s c), the client's proof first. Then the server answers
requests, each an operation with fields. Nothing is pickled or encrypted.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size
DONE, TIMED_OUT = b"\0", b"\1"
_PROOF_SECONDS = 30.0
_LONGEST_FRAME = 64 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreAddress:
    """Host and port of a store, and the secret that its clients need."""

    host: str
    port: int
    secret: str = field(repr=False)


class StoreServer:
    """Serves one store to processes that know its secret. Keep it for all process groups."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
        port = int(self._listener.getsockname()[1])
        self.address = StoreAddress(host=host, port=port, secret=secrets.token_hex(32))
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, name="group-store", daemon=True).start()

    def where(self) -> tuple[str, int, str]:
        """Return host, port and secret as plain values."""
        return self.address.host, self.address.port, self.address.secret

    def close(self) -> None:
        """Stop listening. Connected clients stay connected."""
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="group-store-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, struct.error):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_PROOF_SECONDS)
            if not self._has_proved(connection):
                return
            connection.settimeout(None)
            while True:
                operation, *fields = _unpacked(receive_frame(connection))
                send_frame(connection, self._answer(operation, fields))

    def _has_proved(self, connection: socket.socket) -> bool:
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ours)
        theirs = receive(connection, NONCE_BYTES)
        proof = receive(connection, PROOF_BYTES)
        if not hmac.compare_digest(proof, proof_of(self.address.secret, b"client", ours + theirs)):
            return False
        connection.sendall(proof_of(self.address.secret, b"server", ours + theirs))
        return True

    def _answer(self, operation: bytes, fields: list[bytes]) -> bytes:
        operations: dict[bytes, Callable[..., bytes]] = {
            b"set": self._set,
            b"add": self._add,
            b"append": self._append,
            b"compare_set": self._compare_set,
            b"delete": self._delete,
            b"check": self._check,
            b"wait": self._wait,
            b"get": self._get,
            b"count": lambda: str(len(self._values)).encode(),
        }
        with self._changed:
            return operations[operation](*fields)

    def _set(self, key: bytes, value: bytes) -> bytes:
        self._values[key] = value
        self._changed.notify_all()
        return DONE

    def _add(self, key: bytes, amount: bytes) -> bytes:
        total = str(int(self._values.get(key, b"0")) + int(amount)).encode()
        self._set(key, total)
        return total

    def _append(self, key: bytes, value: bytes) -> bytes:
        return self._set(key, self._values.get(key, b"") + value)

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        if self._values.get(key, b"") == expected:
            self._set(key, desired)
        return self._values.get(key, expected)

    def _delete(self, key: bytes) -> bytes:
        return b"1" if self._values.pop(key, None) is not None else b"0"

    def _check(self, *keys: bytes) -> bytes:
        return b"1" if all(key in self._values for key in keys) else b"0"

    def _wait(self, seconds: bytes, *keys: bytes) -> bytes:
        there = self._changed.wait_for(lambda: all(key in self._values for key in keys), float(seconds))
        return DONE if there else TIMED_OUT

    def _get(self, seconds: bytes, key: bytes) -> bytes:
        return DONE + self._values[key] if self._wait(seconds, key) == DONE else TIMED_OUT


def proof_of(secret: str, side: bytes, nonces: bytes) -> bytes:
    """Return the HMAC with which a side, b"client" or b"server", proves that it knows the secret."""
    return hmac.digest(secret.encode(), side + nonces, "sha256")


def packed(fields: Sequence[bytes]) -> bytes:
    """Join fields into one payload, each after its length in four bytes."""
    return b"".join(struct.pack(">I", len(one)) + one for one in fields)


def _unpacked(payload: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(payload):
        (size,) = struct.unpack_from(">I", payload, at)
        fields.append(payload[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


def send_frame(connection: socket.socket, payload: bytes) -> None:
    """Send a payload after its length."""
    connection.sendall(struct.pack(">I", len(payload)) + payload)


def receive_frame(connection: socket.socket) -> bytes:
    """Receive a payload of `send_frame`. ConnectionError if the connection is closed or the payload too long."""
    (size,) = struct.unpack(">I", receive(connection, 4))
    if size > _LONGEST_FRAME:
        raise ConnectionError(f"a message of {size} bytes is too long")
    return receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises ConnectionError if the connection is closed."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise ConnectionError("connection closed by the other side")
        parts += part
    return bytes(parts)
