"""Asks the controller of a study to drain, on whichever machine it runs, and waits for it (`automl stop`)."""

from __future__ import annotations

import shlex
import time
from typing import Any

from studies.storage import lease as leases
from studies.storage.store import Store

POLL_SECONDS = 0.2


def stop_study(store: Store, name: str, *, wait_seconds: float) -> dict[str, Any]:
    """Ask for a drain, and wait until the controller has released its lease.

    Args:
        store: Store that holds the study.
        name: Name of the study.
        wait_seconds: Seconds to wait at most.

    Returns:
        Plain values: `study`, its `state`, whether it is still `driven`, and a `message` for people.

    Raises:
        StoreError: There is no such study.
    """
    row = store.require(name)
    if not leases.request_stop(store, row.id):
        if leases.stop_waiting(store, row.id):
            message = f"{name} is drained; a process that waits for room on its disk gives up"
            return {"study": name, "state": row.state, "driven": False, "message": message}
        what = f"`automl resume {shlex.quote(name)}` continues it" if row.state == "running" else f"it is {row.state}"
        return {"study": name, "state": row.state, "driven": False, "message": f"no controller drives {name}; {what}"}
    deadline = time.monotonic() + wait_seconds
    while leases.current_holder(store, row.id) is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    state = store.require(name).state
    ended = leases.current_holder(store, row.id) is None
    message = f"{name} is {state}" if ended else f"{name} is draining; its trials have not ended their epochs yet"
    return {"study": name, "state": state, "driven": not ended, "message": message}
