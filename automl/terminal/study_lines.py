"""Lists of studies and jobs, one line each (`automl list`, `automl queue`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from automl.terminal.echo import echo
from reports.phrases import plural, state_text, usd
from studies.records.records import IMPORTED, NANO, StudyLine


def rows_of(lines: Iterable[StudyLine]) -> list[dict[str, Any]]:
    """Return studies in the form of `automl list --json`."""
    return [
        {
            "study": line.name,
            "state": line.state,
            "stop_reason": line.stop_reason,
            "driven": line.driven,
            "trials": line.trials,
            "cost_usd": line.cost_nano_usd / NANO,
            "created_at": line.created_at.isoformat(timespec="seconds"),
        }
        for line in lines
    ]


def print_lines(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print studies, one line each."""
    for row in rows:
        why = IMPORTED if row.get("stop_reason") == IMPORTED else ""
        state = state_text(row["study"], row["state"], driven=row["driven"], why=why)
        cost, trials = usd(row["cost_usd"]), plural(row["trials"], "trial")
        echo(f"{row['study']:30} {trials:>12}  {cost:>10}  {row['created_at']}  {state}")


def print_queue(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print jobs, one line each."""
    if not jobs:
        echo("no study is waiting or running")
    for job in jobs:
        limit = "" if job["limit_usd"] is None else f" of {usd(job['limit_usd'])}"
        slots = "all slots" if job["slots"] is None else plural(job["slots"], "slot")
        money = f"{usd(job['spent_usd'])}{limit}"
        who = f"{job['user']} ({job['project']})"
        echo(f"{job['study']:30} {who:20} priority {job['priority']:>4}  {slots:>9}  {money:>18}  {state_of(job)}")


def state_of(job: Mapping[str, Any]) -> str:
    """Describe the state of a job, with worker, pending request and reason."""
    state = str(job["state"])
    if state == "running":
        state += f" on {job['worker']}" if job["worker"] else ""
        state += f", asked to {job['request']}" if job["request"] else ""
    return f"{state}: {job['reason']}" if job["reason"] else state
