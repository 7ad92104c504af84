"""`automl stop`: ask the controller of a study to drain, wherever it runs, and wait for it."""

from __future__ import annotations

import shlex
import time
from typing import Any

from studies.storage import lease as leases
from studies.storage.store import Store

POLL_SECONDS = 0.2


def stop_study(store: Store, name: str, *, wait_seconds: float) -> dict[str, Any]:
    """Ask for a drain and wait until the controller has given its lease back.

    Raises:
        StoreError: There is no such study.
    """
    row = store.require(name)
    if not leases.request_stop(store, row.id):
        what = f"automl resume {shlex.quote(name)} goes on" if row.state == "running" else f"it is {row.state}"
        return {"study": name, "state": row.state, "driven": False, "message": f"nobody drives {name}; {what}"}
    deadline = time.monotonic() + wait_seconds
    while leases.current_holder(store, row.id) is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    state = store.require(name).state
    ended = leases.current_holder(store, row.id) is None
    message = f"{name} is {state}" if ended else f"{name} is draining; its trials have not ended their epochs yet"
    return {"study": name, "state": state, "driven": not ended, "message": message}
