"""The program that becomes a run of a study in a job: its launch in the first one, and going on with it in each other.

    python -m automl.clusters.next_run SPEC STUDY ADDRESS

ADDRESS is that of the Ray cluster, as YAML: null trains on this machine alone. The store is AUTOML_STORE. The process
keeps its id, so that what signals it signals the study.
"""

from __future__ import annotations

import os
import sys
import time

from automl.stored.opening import store_url
from search_spaces.user_errors import UserError
from studies.storage.leases import lease
from studies.storage.schema.engine import exists
from studies.storage.study_store import Store

LEASE_SECONDS = 60.0
"""Longest time in which the lease of the run before may have to run out; it was killed if it was on another node."""
_LOOK_SECONDS = 1.0


def main() -> None:
    """Become `automl launch` or `automl resume`, once the controller of the run before is gone."""
    spec, study, address = sys.argv[1:]
    try:
        verb = ("resume", study) if _is_stored(study) else ("launch", spec)
    except UserError as error:
        sys.stderr.write(f"automl: {error}\n")
        sys.exit(2)
    arguments = [*verb, "--set", f"resources.ray_address={address}"]
    os.execv(sys.executable, [sys.executable, "-m", "automl", *arguments])  # noqa: S606 - no shell is wanted


def _is_stored(study: str) -> bool:
    """Whether the store has the study; waits while a controller drives it, which may have died a moment ago."""
    url = store_url(None)
    if not exists(url):
        return False
    store = Store(url)
    if study not in store.study_names():
        return False
    number, deadline = store.require(study).id, time.monotonic() + LEASE_SECONDS
    while lease.current_holder(store, number) is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return True


if __name__ == "__main__":
    main()
