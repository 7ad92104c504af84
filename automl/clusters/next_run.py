"""Runs a study in a cluster's job: `python -m automl.clusters.next_run SPEC STUDY RAY_ADDRESS`."""

import os
import sys
import time

from automl.stored.open_store import store_url
from search_spaces.messages import UserError
from studies.storage.leases import lease
from studies.storage.schema.engine import exists
from studies.storage.study_store import Store

LEASE_SECONDS = 60.0  # most seconds to wait for the lease of a previous run that was killed on another node
_LOOK_SECONDS = 1.0


def main() -> None:
    """Become `automl resume` if the store has the study, else `automl launch`."""
    spec, study, address = sys.argv[1:]
    try:
        verb = ("resume", study) if _is_stored(study) else ("launch", spec)
    except UserError as error:
        sys.stderr.write(f"automl: {error}\n")
        sys.exit(2)
    arguments = [*verb, "--set", f"resources.ray_address={address}"]
    os.execv(sys.executable, [sys.executable, "-m", "automl", *arguments])  # noqa: S606 - no shell is wanted


def _is_stored(study: str) -> bool:
    """Return whether the store has the study, after waiting for the lease of a dead controller."""
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
