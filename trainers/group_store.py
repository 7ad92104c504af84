"""The store over which process groups form: a server with a secret, and torch stores that are its clients.

torch's own TCPStore answers whoever connects. Here both sides first prove that they know the secret:

    server ── 16 random bytes s ──► client
    server ◄── 16 random bytes c, HMAC-SHA256(secret, "client" s c) ── client
    server ── HMAC-SHA256(secret, "server" s c) ──► client

Then a request is an operation with its fields, and each has an answer. Nothing is pickled, and nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

_NONCE_BYTES = 16
_PROOF_BYTES = hashlib.sha256().digest_size
_PROOF_SECONDS = 30.0
_LONGEST_FRAME = 64 * 1024**2
_ANSWER_SECONDS = 30.0
"""Time for an answer, beside what the request itself waits for."""
_DONE, _TIMED_OUT = b"\0", b"\1"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreAddress:
    """Where a store is, and the secret that it answers to."""

    host: str
    port: int
    secret: str = field(repr=False)


class StoreServer:
    """Serves one store to many processes, which know its secret; it lives as long as this object.

    Args:
        host: Address to listen on, and on no other.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
        port = int(self._listener.getsockname()[1])
        self.address = StoreAddress(host=host, port=port, secret=secrets.token_hex(32))
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, name="group-store", daemon=True).start()

    def close(self) -> None:
        """Listen no more; clients that are connected stay."""
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
                operation, *fields = _unpacked(_receive_frame(connection))
                _send_frame(connection, self._answer(operation, fields))

    def _has_proved(self, connection: socket.socket) -> bool:
        ours = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(ours)
        theirs = _receive(connection, _NONCE_BYTES)
        proof = _receive(connection, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(self.address.secret, b"client", ours + theirs)):
            return False
        connection.sendall(_proof(self.address.secret, b"server", ours + theirs))
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
        return _DONE

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
        return _DONE if there else _TIMED_OUT

    def _get(self, seconds: bytes, key: bytes) -> bytes:
        return _DONE + self._values[key] if self._wait(seconds, key) == _DONE else _TIMED_OUT


class StoreClient(Store):
    """A torch store that another process serves; keep it for all groups.

    Args:
        address: Address and secret of the server.
        timeout_seconds: Deadline of the connection and of each request.

    Raises:
        DistNetworkError: Nobody answers there, or the other side does not know the secret.
    """

    def __init__(self, address: StoreAddress, timeout_seconds: float) -> None:
        super().__init__()
        self._address, self._timeout_seconds = address, timeout_seconds
        self._asking = threading.Lock()
        self._copies: list[StoreClient] = []
        try:
            self._connection = socket.create_connection((address.host, address.port), timeout=timeout_seconds)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._prove()
        except OSError as error:
            raise DistNetworkError(f"failed to connect to the store of process groups: {error}") from error

    def __del__(self) -> None:
        """Close the connection."""
        if hasattr(self, "_connection"):
            self._connection.close()

    def _prove(self) -> None:
        theirs = _receive(self._connection, _NONCE_BYTES)
        ours = secrets.token_bytes(_NONCE_BYTES)
        self._connection.sendall(ours + _proof(self._address.secret, b"client", theirs + ours))
        proof = _receive(self._connection, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(self._address.secret, b"server", theirs + ours)):
            raise ConnectionError("the other side does not know the secret")

    def _ask(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> bytes:
        try:
            with self._asking:
                self._connection.settimeout(seconds + _ANSWER_SECONDS)
                _send_frame(self._connection, _packed([operation, *fields]))
                answer = _receive_frame(self._connection)
        except OSError as error:
            raise DistNetworkError(f"connection closed to the store of process groups: {error}") from error
        return answer

    def _ask_and_wait(self, operation: bytes, keys: Sequence[str], timeout: timedelta | None) -> bytes:
        seconds = self._timeout_seconds if timeout is None else timeout.total_seconds()
        began = time.monotonic()
        fields = (str(seconds).encode(), *(key.encode() for key in keys))
        answer = self._ask(operation, *fields, seconds=seconds)
        if answer[:1] == _TIMED_OUT:
            waited = time.monotonic() - began
            raise DistStoreError(f"timed out after {waited:.0f} s waiting for {', '.join(keys)}")
        return answer[1:]

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask(b"set", key.encode(), _as_bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, once it is there."""
        return self._ask_and_wait(b"get", [key], None)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it."""
        return int(self._ask(b"add", key.encode(), str(amount).encode()))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value."""
        self._ask(b"append", key.encode(), _as_bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace a value if it is the expected one; returns the value that is there."""
        return self._ask(b"compare_set", key.encode(), _as_bytes(expected), _as_bytes(desired))

    def delete_key(self, key: str) -> bool:
        """Delete a value; returns whether there was one."""
        return self._ask(b"delete", key.encode()) == b"1"

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all values are there."""
        return self._ask(b"check", *(key.encode() for key in keys)) == b"1"

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once all values are there."""
        self._ask_and_wait(b"wait", list(keys), timeout)

    def num_keys(self) -> int:
        """Return the number of values."""
        return int(self._ask(b"count"))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of each request."""
        self._timeout_seconds = timeout.total_seconds()

    deleteKey = delete_key  # noqa: N815 - some calls from torch's C++ parts come by its own names
    getNumKeys = num_keys  # noqa: N815 - as above

    def clone(self) -> Any:
        """Return a store of the same server with a connection of its own, which lives as long as this one."""
        self._copies.append(StoreClient(self._address, self._timeout_seconds))
        return self._copies[-1]


def _proof(secret: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + nonces, "sha256")


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _packed(fields: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(one)) + one for one in fields)


def _unpacked(payload: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(payload):
        (size,) = struct.unpack_from(">I", payload, at)
        fields.append(payload[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


def _send_frame(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(struct.pack(">I", len(payload)) + payload)


def _receive_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">I", _receive(connection, 4))
    if size > _LONGEST_FRAME:
        raise ConnectionError(f"a frame of {size} bytes")
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise ConnectionError("connection closed by the other side")
        parts += part
    return bytes(parts)
