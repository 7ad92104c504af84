"""A torch store for forming process groups, as a client of `trainers.ranks.group_store_server`."""

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from trainers.ranks.group_store_server import (
    NONCE_BYTES,
    PROOF_BYTES,
    TIMED_OUT,
    StoreAddress,
    packed,
    proof_of,
    receive,
    receive_frame,
    send_frame,
)

STORE_TIMEOUT_SECONDS = 60.0
_ANSWER_SECONDS = 30.0  # seconds for an answer, besides the request's own wait


class StoreClient(Store):
    """Torch store in another process. Keep one client for all process groups of a study."""

    def __init__(self, address: StoreAddress, timeout_seconds: float = STORE_TIMEOUT_SECONDS) -> None:
        super().__init__()
        self._address = address
        self.set_timeout(timedelta(seconds=timeout_seconds))
        self._asking = threading.Lock()
        self._copies: list[StoreClient] = []
        try:
            self._connection = socket.create_connection((address.host, address.port), timeout=timeout_seconds)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = receive(self._connection, NONCE_BYTES)
            ours = secrets.token_bytes(NONCE_BYTES)
            self._connection.sendall(ours + proof_of(self._address.secret, b"client", theirs + ours))
            proof = receive(self._connection, PROOF_BYTES)
            if not hmac.compare_digest(proof, proof_of(self._address.secret, b"server", theirs + ours)):
                raise ConnectionError("another server is at this address: it does not know the secret of the store")
        except OSError as error:
            raise DistNetworkError(f"failed to connect to the store of process groups: {error}") from error

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()

    def _ask(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> bytes:
        try:
            with self._asking:
                self._connection.settimeout(seconds + _ANSWER_SECONDS)
                send_frame(self._connection, packed([operation, *fields]))
                answer = receive_frame(self._connection)
        except OSError as error:
            raise DistNetworkError(f"connection closed to the store of process groups: {error}") from error
        return answer

    def _ask_and_wait(self, operation: bytes, keys: Sequence[str], timeout: timedelta | None) -> bytes:
        seconds = self._timeout_seconds if timeout is None else timeout.total_seconds()
        began = time.monotonic()
        fields = (str(seconds).encode(), *(key.encode() for key in keys))
        answer = self._ask(operation, *fields, seconds=seconds)
        if answer[:1] == TIMED_OUT:
            waited = time.monotonic() - began
            raise DistStoreError(f"timed out after {waited:.0f} s waiting for {', '.join(keys)}")
        return answer[1:]

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value under a key."""
        self._ask(b"set", key.encode(), _as_bytes(value))

    def get(self, key: str) -> bytes:
        """Wait until a key has a value, and return the value."""
        return self._ask_and_wait(b"get", [key], None)

    def add(self, key: str, amount: int) -> int:
        """Add to a key's number, 0 at first, and return the sum."""
        return int(self._ask(b"add", key.encode(), str(amount).encode()))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key."""
        self._ask(b"append", key.encode(), _as_bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace a key's value if it equals `expected`. Returns the key's new value."""
        return self._ask(b"compare_set", key.encode(), _as_bytes(expected), _as_bytes(desired))

    def delete_key(self, key: str) -> bool:
        """Delete a key, and return whether it existed."""
        return self._ask(b"delete", key.encode()) == b"1"

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        return self._ask(b"check", *(key.encode() for key in keys)) == b"1"

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._ask_and_wait(b"wait", list(keys), timeout)

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._ask(b"count"))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of each request."""
        self._timeout_seconds = timeout.total_seconds()
        super().set_timeout(timeout)  # for torch's C++ parts

    deleteKey = delete_key  # noqa: N815 - torch's C++ code calls it by this name
    getNumKeys = num_keys  # noqa: N815 - as above

    def clone(self) -> Any:
        """Return a store with its own connection to the same server, which this store keeps open."""
        self._copies.append(StoreClient(self._address, self._timeout_seconds))
        return self._copies[-1]


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
