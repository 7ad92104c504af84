"""The queue in lines: running jobs, then waiting ones in order (`automl queue`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from automl.terminal.echo import echo
from reports.phrases import usd


def print_queue(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print jobs, one line each."""
    if not jobs:
        echo("nothing waits, and nothing runs")
    for job in jobs:
        limit = "" if job["limit_usd"] is None else f" of {usd(job['limit_usd'])}"
        slots = "all slots" if job["slots"] is None else f"{job['slots']} slots"
        money = f"{usd(job['spent_usd'])}{limit}"
        who = f"{job['user']} ({job['project']})"
        echo(f"{job['study']:30} {who:20} priority {job['priority']:>4}  {slots:>9}  {money:>18}  {state_of(job)}")


def state_of(job: Mapping[str, Any]) -> str:
    """Return the state of a job in words, with its worker, pending request, and reason."""
    state = str(job["state"])
    if state == "running":
        state += f" on {job['worker']}" if job["worker"] else ""
        state += f", asked to {job['request']}" if job["request"] else ""
    return f"{state}: {job['reason']}" if job["reason"] else state
