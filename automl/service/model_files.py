"""A model of a study as a file to download: written by a process of its own, which imports the user's code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO
from zipfile import ZIP_STORED, ZipFile

from automl.exporting.exports import export_point
from automl.service.asking import answer_of
from automl.service.bodies import ModelQuestion
from automl.service.team_studies import TeamStudies
from search_spaces.errors import RunError, UserError
from studies.storage.reader import load_study
from studies.storage.store import Store

DESCRIPTION = "export.json"
"""Member of the archive that has what `automl export --json` prints."""
_CHUNK_BYTES = 2**20


def zipped_model(studies: TeamStudies, name: str, asked: ModelQuestion) -> tuple[BinaryIO, str]:
    """Return a ZIP archive with the model, as a file or as a folder, and `export.json` beside it; and its name.

    Nothing of it stays on the disk once it is closed.

    Args:
        studies: Studies as the caller may see them.
        name: Name of the study.
        asked: Which model, and in which form.

    Raises:
        MissingError: There is no such study, or it has not started.
        UserError: There is no such point, its checkpoint is not on this machine, or the form does not suit.
        ConflictError: The task's code took too long.
        BusyError: Too many exports are made now.
    """
    study = studies.record(name).name
    with TemporaryDirectory(prefix="automl-export-") as folder:
        out = Path(folder, "model" + _ENDINGS.get(asked.format, ""))
        order = json.dumps({"study": study, "out": str(out), **asked.model_dump()})
        described = answer_of("automl.service.model_files", text=order, what="export", AUTOML_STORE=studies.store.url)
        archive: BinaryIO = TemporaryFile()  # noqa: SIM115 - who sends it closes it
        # Weights are random bits: packing them takes time and saves nothing.
        with ZipFile(archive, "w", ZIP_STORED) as members:
            members.writestr(DESCRIPTION, json.dumps(described, indent=1))
            for path in sorted([out, *out.rglob("*")]):
                members.write(path, path.relative_to(folder))
    return archive, f"{study}-{described['trial']}@{described['epoch']}.zip"


_ENDINGS = {"weights": ".pt", "torch-export": ".pt2", "onnx": ".onnx"}


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file from its beginning, and close it."""
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def main() -> None:
    """Write the model that is asked for on stdin, and print what was written as one line of JSON."""
    asked = json.loads(sys.stdin.read())
    store = Store(os.environ["AUTOML_STORE"])
    try:
        written = export_point(
            load_study(store, asked["study"]), asked["point"], Path(asked["out"]),
            base_folder=store.require(asked["study"]).base_folder, form=asked["format"], model=asked["model"],
            licence=asked["licence"], ensemble=asked["ensemble"], place=Path(asked["place"]),
        )  # fmt: skip
    except (UserError, RunError) as error:
        sys.exit(" ".join(str(error).split()))
    print(json.dumps(written))


if __name__ == "__main__":
    main()
