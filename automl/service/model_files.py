"""Exports a model as a download, in a separate process that imports the user's code."""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO

from fastapi.responses import StreamingResponse

from automl.exporting.atomic_outputs import DESCRIPTION, pack
from automl.exporting.exports import ENDINGS, export_point
from automl.service.http.gate import Receive, Scope, Send
from automl.service.http.request_bodies import ModelQuestion
from automl.service.http_errors import BusyError
from automl.service.subprocess_questions import Kind, answer_of, telling
from automl.service.team_studies import TeamStudies
from search_spaces.messages import RunError
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store

EXPORT = Kind.of(
    "export", seconds=600.0, too_late="it took longer than 600 s. Run `automl export` beside the store instead", most=1
)
MOST_ARCHIVES = 8  # largest number of archives waiting for their clients, each as large as its model
_CHUNK_BYTES = 2**20
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_archives = threading.BoundedSemaphore(MOST_ARCHIVES)


class ModelArchive:
    """A temporary ZIP archive with a model for one download, created by `begun`. Leaves no file behind."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.name = file, "model.zip"

    @classmethod
    def begun(cls) -> "ModelArchive":
        """Create an empty archive. Raises BusyError if `MOST_ARCHIVES` archives are open."""
        if not _archives.acquire(blocking=False):
            raise BusyError(f"export: the service already runs {MOST_ARCHIVES} downloads, its limit. Try again later")
        try:
            return cls(TemporaryFile())
        except BaseException:
            _archives.release()
            raise

    @property
    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def __iter__(self) -> Iterator[bytes]:
        with suppress(ValueError):  # the archive was closed, because its reader is gone
            self.file.seek(0)
            while chunk := self.file.read(_CHUNK_BYTES):
                yield chunk

    def close(self) -> None:
        """Delete the archive, so that another can be created."""
        if not self.file.closed:
            self.file.close()
            _archives.release()

    def __del__(self) -> None:
        self.close()


class Download(StreamingResponse):
    """HTTP answer that sends an archive, then closes it, even if the client disconnects."""

    def __init__(self, archive: ModelArchive) -> None:
        headers = {
            "Content-Disposition": f'attachment; filename="{archive.name}"',
            "Content-Length": str(archive.size),
            "Cache-Control": "no-store",
        }
        super().__init__(archive, media_type="application/zip", headers=headers)
        self._archive = archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the archive, then close it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._archive.close()


def model_archive(studies: TeamStudies, name: str, asked: ModelQuestion) -> ModelArchive:
    """Return an archive with a model, a file or folder, and `export.json`.

    Raises:
        MissingError: The study does not exist, or has not started.
        UserError: The model does not exist, or cannot have this format.
        RunError: The checkpoint is unreadable or not on this machine, or the disk is full.
        ConflictError: The export took too long.
        BusyError: Too many exports are running or being downloaded.
    """
    study = studies.record(name).name
    archive = ModelArchive.begun()
    try:
        with TemporaryDirectory(prefix="automl-export-") as folder:
            out = Path(folder, _file_name(asked))
            order = {"study": study, "out": str(out), **asked.model_dump(), "place": asked.place or out.name}
            written = answer_of(
                "automl.service.model_files", text=json.dumps(order), kind=EXPORT, AUTOML_STORE=studies.store.url,
                TMPDIR=folder,  # so that a killed program leaves nothing
            )  # fmt: skip
            pack(out, written, archive.file)
        archive.file.flush()
    except OSError as error:
        archive.close()
        raise RunError(f"export: the service cannot write the model: {error.strerror or error}") from None
    except BaseException:
        archive.close()
        raise
    archive.name = f"{study}-{written['trial']}@{written['epoch']}.zip"
    return archive


def _file_name(asked: ModelQuestion) -> str:
    name = PurePath(asked.place or "").name
    is_plain = _NAME.fullmatch(name) is not None and name != DESCRIPTION
    return name if is_plain else "model" + ENDINGS.get(asked.format, "")


def main() -> None:
    """Export the model that stdin names, and print the result as one line of JSON."""
    asked = json.loads(sys.stdin.read())
    with telling():
        store = Store(os.environ["AUTOML_STORE"])
        written = export_point(
            load_study(store, asked["study"]), asked["point"], Path(asked["out"]),
            base_folder=store.require(asked["study"]).base_folder, form=asked["format"], model=asked["model"],
            licence=asked["licence"], ensemble=asked["ensemble"], place=Path(asked["place"]),
        )  # fmt: skip
    print(json.dumps(written))


if __name__ == "__main__":
    main()
