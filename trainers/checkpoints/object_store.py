"""Stores checkpoints in an object store, through the library fsspec.

Beside each checkpoint is its *manifest*, NAME.pt.manifest, with the sizes and checksums of its objects. The manifest
is written last, deleted first and read first, so that stale listings and broken uploads do no harm.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from fsspec import filesystem
from fsspec.callbacks import Callback
from fsspec.exceptions import FSTimeoutError

from search_spaces.messages import RunError, one_line, without_password
from trainers.checkpoints.checkpoint_cache import Content, DamagedObjectError, cache_of_this_machine, hashed
from trainers.checkpoints.locations import NO_PARTS, SCHEMES, Parts, Save, joined, name_of, scheme_of, tick

MANIFEST = ".manifest"
FORMAT = 1
ANSWER_SECONDS = 60.0
"""Seconds to wait for a store, besides the transfer: less than the silence after which ranks are killed."""
SLOWEST_BYTES_PER_SECOND = 2**20
_LONGEST_CAUSE = 300
_SECRET = ("SECRET", "TOKEN", "KEY", "PASSWORD", "CONNECTION_STRING", "CREDENTIAL")
"""Parts of names of environment variables whose values must not appear in messages."""
_NOT_ALLOWED = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError", "RefreshError",
     "ClientAuthenticationError", "CredentialUnavailableError", "ParamValidationError", "InvalidRegionError"}
)  # fmt: skip
_READING: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}}
"""Options for reading small objects. Without them, s3fs first requests the size, and loses the cause of a refusal."""
_CHANGED_AT = ("LastModified", "mtime", "last_modified", "updated")


class ObjectStoreError(RunError, OSError):
    """An object store failed; `strerror` has the cause. `is_lasting`: a person must act, for example on credentials."""

    def __init__(self, cause: str, *, is_lasting: bool = False) -> None:
        super().__init__(errno.EIO, cause)
        self.is_lasting = is_lasting

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStoreError, (self.strerror,)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """Object in a listing, or unfinished upload with an `upload_id`. `modified_at` is in seconds since 1970."""

    url: str
    bytes: int
    modified_at: float
    upload_id: str = ""


class ObjectStore:
    """Object stores of one kind; see `trainers.checkpoints.locations.Place`."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write the object, then its manifest; see `Place`."""
        files = {name_of(path): self._upload(path, save), **parts}
        self.write_note(
            path + MANIFEST, json.dumps({"format": FORMAT, "files": {n: asdict(c) for n, c in files.items()}})
        )
        return sum(content.bytes for content in files.values())

    def write_part(self, path: str, save: Save) -> Content:
        """Write an object without a manifest; see `Place`."""
        return self._upload(path, save)

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:
        """Open a copy of the object, checked against the manifest; see `Place`."""
        return self.open_part(path, self._manifest(path)[name_of(path)], fresh=fresh)

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:
        """See `Place`."""

        def fetch(to: Path) -> None:
            try:
                self._ask(path, "get_file", path, str(to), size=content.bytes, callback=_Counting())
            except FileNotFoundError as error:
                if self.is_there(path):  # the missing file is the folder of the copies
                    raise ObjectStoreError(f"{to}: {error.strerror or error}") from error
                raise

        return cache_of_this_machine().open(path, content, fetch, fresh=fresh)

    def delete(self, path: str) -> None:
        """Delete the manifest and its objects; see `Place`."""
        names = {name_of(path)}
        with suppress(FileNotFoundError, DamagedObjectError):
            names |= self._manifest(path).keys()
        folder = path.removesuffix(name_of(path)).rstrip("/")
        for url in (path + MANIFEST, *(joined(folder, name) for name in sorted(names))):
            self.delete_note(url)
            with suppress(OSError):
                cache_of_this_machine().forget(url)

    def withdraw(self, path: str) -> None:
        """Delete only the manifest; see `Place`."""
        self.delete_note(path + MANIFEST)

    def size(self, path: str) -> int:
        """Sum the sizes in the manifest; see `Place`."""
        try:
            return sum(content.bytes for content in self._manifest(path).values())
        except DamagedObjectError as error:
            raise ObjectStoreError(str(error)) from error

    def write_note(self, path: str, text: str) -> None:
        """See `Place`."""
        self._put(path, "pipe_file", path, text.encode())

    def read_note(self, path: str) -> str:
        """See `Place`."""
        try:
            return cast("bytes", self._ask(path, "cat_file", path, **_READING.get(self._scheme, {}))).decode(
                errors="replace"
            )
        except FileNotFoundError:
            self._check_bucket(path)
            raise

    def delete_note(self, path: str) -> None:
        """See `Place`."""
        with suppress(FileNotFoundError):
            self._ask(path, "rm_file", path)

    def try_out(self, folder: str, size: int) -> None:
        """See `Place`."""
        url = joined(folder, ".room")
        self._upload(url, lambda file: file.write(bytes(size)), is_kept=False)
        self.delete_note(url)

    def objects_below(self, folder: str) -> Iterator[StoredObject]:
        """Yield the listed objects below a folder. Listings may be out of date."""
        try:
            found = self._ask(folder, "find", folder, detail=True)
        except FileNotFoundError:
            self._check_bucket(folder)
            return
        for name, about in found.items():
            if about.get("type") == "file":
                url = f"{self._scheme}://{name}"
                yield StoredObject(url=url, bytes=int(about.get("size") or 0), modified_at=_moment(about))

    def is_there(self, url: str) -> bool:
        """Return whether an object exists, without a listing, which may be out of date."""
        try:
            return bool(self._ask(url, "info", url).get("type") == "file")
        except FileNotFoundError:
            self._check_bucket(url)
            return False

    def unfinished_uploads(self, folder: str) -> Iterator[StoredObject]:
        """Yield unfinished uploads below a folder on S3, which keeps them until they are ended."""
        if self._scheme != "s3":
            return
        bucket, _, key = folder.partition("://")[2].partition("/")
        prefix = f"{key}/" if key else ""
        told = self._ask(folder, "call_s3", "list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        for upload in told.get("Uploads") or ():
            url = f"{self._scheme}://{bucket}/{upload['Key']}"
            began_at = _moment({"LastModified": upload.get("Initiated")})
            yield StoredObject(url=url, bytes=0, modified_at=began_at, upload_id=str(upload["UploadId"]))

    def end_upload(self, upload: StoredObject) -> None:
        """End an unfinished upload."""
        bucket, _, key = upload.url.partition("://")[2].partition("/")
        with suppress(FileNotFoundError):
            names = {"Bucket": bucket, "Key": key, "UploadId": upload.upload_id}
            self._ask(upload.url, "call_s3", "abort_multipart_upload", names)

    def _manifest(self, path: str) -> dict[str, Content]:
        text = self.read_note(path + MANIFEST)
        own = name_of(path)
        stem = own.removesuffix(".pt")
        try:
            files = {name: Content(bytes=int(one["bytes"]), sha256=str(one["sha256"]))
                     for name, one in json.loads(text)["files"].items()}  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedObjectError(f"{path}{MANIFEST} is not a valid manifest ({type(error).__name__})") from error
        # A forged manifest could name any object, and all objects in a manifest are deleted with it.
        if own not in files or any("/" in name or not name.startswith(f"{stem}.") for name in files):
            raise DamagedObjectError(f"{path}{MANIFEST} does not list the files of this checkpoint")
        return files

    def _upload(self, path: str, save: Save, *, is_kept: bool = True) -> Content:
        """Upload an object from a local file, which becomes the cached copy."""
        cache = cache_of_this_machine()
        with cache.draft() as draft:
            with draft.open("wb") as file:
                content = hashed(save, file)
            self._put(path, "put_file", str(draft), path, size=content.bytes, callback=_Counting())
            if is_kept:
                with suppress(OSError):  # the object exists, and is fetched if it has no copy
                    cache.keep(draft, path, content)
        return content

    def _put(self, path: str, method: str, *arguments: Any, **options: Any) -> None:
        try:
            self._ask(path, method, *arguments, **options)
        except FileNotFoundError as error:
            self._check_bucket(path)
            raise _fault(error, path) from error

    def _check_bucket(self, path: str) -> None:
        """Raise ObjectStoreError for a missing bucket, so that its checkpoints do not count as lost."""
        bucket = _bucket_of(path)
        try:
            self._ask(bucket, "info", bucket)
        except FileNotFoundError as error:
            raise ObjectStoreError(f"{bucket} does not exist", is_lasting=True) from error

    def _ask(self, about: str, method: str, *arguments: Any, size: int = 0, **options: Any) -> Any:
        seconds = ANSWER_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        try:
            store = filesystem(self._scheme, use_listings_cache=False)
            return getattr(store, method)(*arguments, timeout=seconds, **options)
        except FileNotFoundError:
            raise
        except FSTimeoutError as error:
            raise ObjectStoreError(f"{_bucket_of(about)} did not answer within {seconds:.0f} s") from error
        except Exception as error:  # each library has errors of its own
            if "Checksum" in type(error).__name__:
                raise DamagedObjectError(f"{about} arrived with other bytes than were written") from error
            raise _fault(error, about) from error


class _Counting(Callback):  # type: ignore[misc]
    """Counts transferred chunks, so that a rank does not look silent during a large transfer."""

    def __init__(self) -> None:
        super().__init__()
        self._tick: Callable[[], None] = tick()

    def call(self, *_: Any, **__: Any) -> None:
        self._tick()


def _fault(error: Exception, path: str) -> ObjectStoreError:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    lasting = isinstance(error, PermissionError | ValueError) or not _NOT_ALLOWED.isdisjoint(
        c.__name__ for c in type(error).__mro__
    )
    text = without_secrets(" ".join(str(said).split()))[:_LONGEST_CAUSE]
    return ObjectStoreError(f"{_bucket_of(path)}: {text}", is_lasting=lasting)


def without_secrets(text: str) -> str:
    """Return a text on one line, without passwords in URLs and values of secret environment variables."""
    names = tuple(prefix for scheme in SCHEMES.values() for prefix in scheme.environment)
    for name, value in os.environ.items():
        if len(value) > 3 and name.startswith(names) and any(part in name for part in _SECRET):
            text = text.replace(value, "***")
    return one_line(without_password(text))


def _bucket_of(path: str) -> str:
    scheme, rest = scheme_of(path), path.partition("://")[2]
    return f"{scheme}://{rest.partition('/')[0]}"


def _moment(about: dict[str, Any]) -> float:
    for key in _CHANGED_AT:
        value = about.get(key)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return float("inf")
