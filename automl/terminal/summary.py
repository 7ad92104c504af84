"""A short summary of a study for `automl status` and the end of `automl launch`."""

import shlex
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from automl.terminal.output import PIPE_COLUMNS
from automl.terminal.picture import picture_of
from automl.terminal.tables import print_archive, print_running
from automl.terminal.texts import cut, late_views_text
from reports.baselines_on_page import baseline_lines
from reports.hypervolume import hypervolume_in_words
from reports.phrases import budget_amount, plural, usd, value_in_words
from reports.recommending import last_quarter_in_words, recommendation_lines
from reports.state_wording import study_sentence
from search_spaces.wording import listed
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis, feasibility
from studies.results.baselines import baselines
from studies.results.constraints import Bound, value_of, wanted_in_words
from studies.results.never_tried import never_tried, never_tried_in_words
from studies.results.recommendation import recommended


def print_summary(console: Console, record: StudyRecord, *, report: str | None) -> None:
    """Print state, counts, money and the best values of a study, its running trials and its archive."""
    picture = picture_of(record, time.time())
    rows = [
        *(("recommended" if not place else "", line) for place, line in enumerate(recommendation_lines(record))),
        *(("baselines" if not place else "", line) for place, line in enumerate(baseline_lines(record))),
        ("study", study_sentence(record)),
        ("error", cut(record.error or "", PIPE_COLUMNS)),
        ("slots", _slots(record)),
        ("trials", picture.trials),
        ("queued", _queued(record)),
        ("failure", _first_failure(record)),
        ("constraints", _constraints(record)),
        ("never tried", never_tried_in_words(record)),
        ("learned from", ", ".join(analysis.earlier_names(record))),
        ("cost", _cost(record)),
        ("budget", _budget(record)),
        ("best", picture.figures["best"]),
        ("hypervolume", hypervolume_in_words(record)),
        ("last quarter", last_quarter_in_words(record)),
        ("views", _views(record)),
        ("report", report or ""),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)
    print_running(console, record, picture)
    print_archive(console, record)


def document_of(record: StudyRecord, *, report: str | None) -> dict[str, object]:
    """Return the summary as JSON values: `analysis.summary`, `recommendation`, `baselines` and `never_tried`."""
    found = recommended(record)
    plain = None if found is None else analysis.jsonable(found.plain())
    compared = {"baselines": [one.plain() for one in baselines(record)], "never_tried": never_tried(record)}
    own = {name: analysis.jsonable(value) for name, value in compared.items()}
    return analysis.summary(record, report=report) | {"recommendation": plain} | own


def _slots(record: StudyRecord) -> str:
    """Return the number of existing slots, out of the most that a cluster's autoscaler may bring."""
    if record.most_slots is None or record.slots_there is None or not record.driven:
        return ""
    there = f"{record.slots_there} of up to {record.most_slots} are there"
    return f"{there}; the cluster's autoscaler is asked for the slots that trials still need"


def _queued(record: StudyRecord) -> str:
    if not record.enqueued:
        return ""
    from automl.stored.requests import what_keeps_waiting  # loads the spec's sections

    names, waits = listed(trial.name for trial in record.enqueued), what_keeps_waiting(record)
    return f"{len(record.enqueued)} enqueued, to be tried next ({names}){f'; {waits}' if waits else ''}"


def _first_failure(record: StudyRecord) -> str:
    started = record.started
    if not started or any(trial.state != "failed" for trial in started):
        return ""
    first = started[0]
    reason = cut(first.reason or str(first.failure), PIPE_COLUMNS)
    return f"trial {first.number}: {reason}; see automl explain {shlex.quote(record.name)} {first.number}"


def _views(record: StudyRecord) -> str:
    """Return late views. In a running study only errors count, since views always lag some commits."""
    follows = record.state == "running" and record.driven
    late = [one for one in record.views if one.behind and (one.error or not follows) and not record.not_trained_here]
    return f"{late_views_text(late)}; see automl sync {shlex.quote(record.name)}" if late else ""


def _constraints(record: StudyRecord) -> str:
    if not record.constraints:
        return ""
    if nothing := feasibility.nothing_feasible(record):
        return nothing
    violated = [_violation(bound, trials) for bound, trials in feasibility.violators(record).items() if trials]
    wanted = f"{wanted_in_words(record.constraints)}: kept by {feasibility.feasible_in_words(record)}"
    return "; ".join([wanted, *violated])


def _violation(bound: Bound, trials: Sequence[TrialRecord]) -> str:
    """Return a bound, its number of violations, and the latest violating value, never rounded to the bound."""
    value = value_of(bound, trials[-1].epochs[-1].metrics)
    was, limit = value_in_words(bound.metric, value), value_in_words(bound.metric, bound.bound)
    if was == limit:
        was, limit = bound.told_apart(value)
    return f"{bound.name} {limit} violated by {len(trials)}, the latest trial {trials[-1].number} with {was}"


def _cost(record: StudyRecord) -> str:
    kinds = ", ".join(f"{kind} {usd(amount)}" for kind, amount in analysis.money_by_kind(record).items() if amount)
    over = f"; {usd(record.overshoot_nano_usd / NANO)} over the budget" if record.overshoot_nano_usd else ""
    return f"{usd(record.cost_nano_usd / NANO)} in {record.alive_seconds:.0f} s{f' ({kinds})' if kinds else ''}{over}"


def _budget(record: StudyRecord) -> str:
    lines = []
    for name, line in record.budget.items():
        if line.limit is not None:
            of_limit = plural(round(line.limit), "trial") if name == "trials" else budget_amount(name, line.limit)
            reserved = f" ({budget_amount(name, line.reserved)} reserved)" if line.reserved else ""
            lines.append(f"{budget_amount(name, line.spent)} of {of_limit}{reserved}")
    return ", ".join(lines)
