"""Backs a store up while controllers write to it (`automl store backup`)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from search_spaces.user_errors import RunError, UserError
from studies.storage.study_store import Store
from studies.storage.writing.copying import copy_store


def back_up(source: Store, file: Path) -> dict[str, int]:
    """Write a consistent copy of a store in use; UserError if the file exists, RunError if it cannot be written."""
    if file.exists():
        raise UserError(f"FILE: found {file}, which is there already; allowed: a new file")
    if not file.parent.is_dir():
        raise UserError(f"FILE: found {file}, whose folder is not there; allowed: a file in a folder that is")
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as folder:
            made = Path(folder, "store.db")
            target = Store(f"sqlite:///{made}")
            try:
                counts = copy_store(source, target, while_driven=True)
                with target.engine.connect() as connection:  # one file, without a log beside it
                    connection.exec_driver_sql("ROLLBACK")
                    connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
            finally:
                target.close()
            made.chmod(0o600)  # digests of tokens are in it
            os.link(made, file)  # refuses, as a rename would not, what somebody has put there meanwhile
    except OSError as error:
        raise RunError(f"FILE: {file} cannot be written ({error.strerror})") from None
    return counts
