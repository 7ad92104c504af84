"""Data of the study page, from the store's last commit."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from automl.terminal.picture import picture_of
from reports.content import ModelRow, archive_rows, baseline_rows, trial_lines
from reports.figures import trade_off
from reports.front_picture import front_picture
from reports.page_templates import redacted
from reports.phrases import NOTHING, usd, value_in_words
from reports.recommending import recommendation_lines
from studies.queueing.jobs import ENDED, OVER, Job
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis
from studies.results.pareto import last_epoch, reference_of

MOST_TRIALS = 30  # most trials in each table, the latest; the report has all


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyView:
    """Data of the study page. Unknown values are empty or None."""

    job: Job
    money: str
    spent_percent: float | None
    figures: Mapping[str, str] = field(default_factory=dict)
    recommendation: Sequence[str] = ()
    picture: Markup = field(default_factory=Markup)
    objectives: Sequence[str] = ()
    measured: Sequence[str] = ()
    kept: Sequence[ModelRow] = ()
    confirmed: str = ""
    under_way: Sequence[Mapping[str, Any]] = ()
    ended: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    has_started: bool = False

    @property
    def has_baselines(self) -> bool:
        """True if models are compared with baselines."""
        return any(one.baseline for one in self.kept)

    @property
    def is_over(self) -> bool:
        """True if the job has ended, and can be deleted."""
        return self.job.state in OVER

    @property
    def can_go_on(self) -> bool:
        """True if the job has ended and can be resumed."""
        return self.job.state in ENDED


def view_of(job: Job, record: StudyRecord | None) -> StudyView:
    """Return the data of a study's page."""
    money, share = _money(job)
    if record is None:
        return StudyView(job=job, money=money, spent_percent=share)
    record = redacted(record)
    record = replace(record, reference_point=reference_of(record))  # computed once, since it is slow
    archive, figures = analysis.archive(record), picture_of(record, time.time()).figures
    names = [one.metric for one in record.objectives]
    kept = archive_rows(record, archive)[:MOST_TRIALS]
    lines = [*kept, *baseline_rows(record)] if kept else []
    under_way = [one for one in record.started if one.state in {"running", "paused"}]
    ended = [one for one in record.started if one.state not in {"running", "paused"}]
    return StudyView(
        job=job,
        money=money,
        spent_percent=share,
        figures={name: figures[name] for name in ("trials", "slots", "epochs", "time left") if figures[name]},
        recommendation=recommendation_lines(record),
        picture=front_picture(trade_off(record, archive)),
        objectives=names,
        measured=analysis.measured_names(record),
        kept=lines,
        confirmed=f"confirmed {names[0]}" if any(one.confirmed for one in lines) else "",
        under_way=trial_lines_of(record, under_way[-MOST_TRIALS:][::-1]),
        ended=trial_lines_of(record, ended[-MOST_TRIALS:][::-1]),
        error=record.error or "",
        has_started=True,
    )


def trial_lines_of(record: StudyRecord, trials: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Return table rows of trials, with objectives in the spec's order."""
    planned = last_epoch(record.spec)
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "epochs": f"{len(trial.epochs)} of {planned}" if planned else str(len(trial.epochs)),
            "objectives": _objectives(record, trial.values(record.objectives)),
            "paid": line["cost_usd"].text,
            "why": line["reason"].full or line["reason"].text,
        }
        for trial, line in zip(trials, trial_lines(record, trials), strict=True)
    ]


def _objectives(record: StudyRecord, values: Mapping[str, float | None]) -> list[str]:
    return [value_in_words(one.metric, values.get(one.metric)) or NOTHING for one in record.objectives]


def _money(job: Job) -> tuple[str, float | None]:
    spent = usd(job.ledger_nano_usd / NANO)
    if not job.limit_nano_usd:
        return f"{spent}, without a limit in dollars", None
    share = min(100.0 * job.ledger_nano_usd / job.limit_nano_usd, 100.0)
    return f"{spent} of {usd(job.limit_nano_usd / NANO)}", share


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendingLine:
    """Spending of a user or project. `promised_usd`: money that running jobs may still spend, if a limit is set."""

    kind: str
    name: str
    spent_usd: float
    limit_usd: float | None
    promised_usd: float
    studies: int


def spending(jobs: Sequence[Job], accounts: Mapping[tuple[str, str], Mapping[str, float]]) -> list[SpendingLine]:
    """Return the spending of projects, then of users, largest first."""
    sums: dict[tuple[str, str], list[Job]] = {place: [] for place in accounts}
    for job in jobs:
        sums.setdefault(("project", job.project), []).append(job)
        sums.setdefault(("user", job.user), []).append(job)
    lines = []
    for (kind, name), own in sums.items():
        known = accounts.get((kind, name))
        spent = sum(job.spent_nano_usd for job in own) / NANO
        lines.append(
            SpendingLine(
                kind=kind,
                name=name,
                spent_usd=spent if known is None else known["spent_usd"],
                limit_usd=None if known is None else known["limit_usd"],
                promised_usd=0.0 if known is None else known["promised_usd"],
                studies=len(own),
            )
        )
    return sorted(lines, key=lambda line: (line.kind != "project", -line.spent_usd, line.name))
