"""An exported model as a ZIP archive: the model's file or folder, and the description of the export."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from automl.exporting.atomic_outputs import new_file, new_folder, told_as_output
from automl.exporting.export_errors import ExportError
from automl.standalone.provenance import digest_of, remember

DESCRIPTION = "export.json"  # archive member with the output of `automl export --json`


def pack(out: Path, written: Mapping[str, Any], file: BinaryIO) -> None:
    """Write the archive of a model; `written` is the result of `export_point`."""
    # Weights do not compress.
    with ZipFile(file, "w", ZIP_STORED) as archive:
        archive.writestr(DESCRIPTION, json.dumps(written, indent=1))
        for path in sorted([out, *out.rglob("*")]):
            archive.write(path, path.relative_to(out.parent))


def unpack(file: BinaryIO, out: Path) -> dict[str, Any]:
    """Write an archive's model to `out`, a file or a new or empty folder. Returns the result of its `export_point`."""
    try:
        with ZipFile(file) as archive:
            written: dict[str, Any] = json.loads(archive.read(DESCRIPTION))
            with told_as_output(out):
                _extract(archive, out)
    except (BadZipFile, KeyError, ValueError):
        raise ExportError("the server's answer is no exported model. Does --server name an `automl serve`?") from None
    remember(map(digest_of, [out] if out.is_file() else sorted(out.rglob("*.pt2"))))  # the user trusts the service
    return written


def _extract(archive: ZipFile, out: Path) -> None:
    members = [one for one in archive.infolist() if one.filename != DESCRIPTION]
    if len(members) == 1 and not members[0].is_dir():
        with new_file(out) as path:
            members[0].filename = path.name
            archive.extract(members[0], path.parent)
        return
    with new_folder(out) as folder:
        for one in members:
            one.filename = one.filename.partition("/")[2]  # the folder gets the name that the user chose
            if one.filename:
                archive.extract(one, folder)
