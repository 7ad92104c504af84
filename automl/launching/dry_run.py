"""`automl launch --dry-run`: prints the plan and the expected cost, and writes nothing."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from automl.launching.earlier_studies import summary_of, with_earlier
from automl.launching.expected_cost import earlier_cost, expected_cost
from automl.launching.prepared_study import Prepared
from automl.terminal.echo import echo
from automl.terminal.texts import cut
from reports.phrases import duration, limits_in_words, plural, usd
from search_spaces.messages import listed, one_line
from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter, parameter_of
from search_spaces.space import Space
from search_spaces.untrusted_text import redact, redact_deep
from studies.control.assembly import assemble, setup_of
from studies.results.constraints import wanted_in_words
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.suggester import Suggester
from studies.spec.study_spec import spec_to_mapping
from studies.spec.yaml_reader import write_yaml

FIRST_TRIALS = 3
LONGEST_TASK = 300  # most characters of the line about task and data
MOST_FINDINGS, MOST_COLUMNS, LONGEST_CELL = 12, 25, 28


def show(prepared: Prepared, *, as_json: bool, verbose: bool = False) -> None:
    """Print a study's plan: its headlines, the first parameters and the warnings."""
    prepared = with_earlier(prepared)
    plan = plan_of(prepared)
    if as_json:
        echo(json.dumps(plan, allow_nan=False))
        return
    _show(plan, headlines(prepared, plan))
    for warning in prepared.warnings:
        echo(f"warning: {warning}")
    if verbose:
        echo(f"milestones  {_listed(plan['milestones'])}\n")
        echo(write_yaml(plan["spec"]), nl=False)
    else:
        echo("dry run: nothing was stored; --verbose shows the whole spec")


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print the plan that a service has returned."""
    slots, rungs = f"{plan['slots']}, {plan['price']}", _listed(plan["rungs"]) or "none"
    for line in data_lines(plan.get("data_check", {})):
        echo(line)
    _show(plan, {"study": plan["study"], "slots": slots, "rungs": rungs, "cost": plan["expected_cost"]})
    echo("dry run: nothing was queued; --json shows the whole spec")


def _show(plan: Mapping[str, Any], lines: Mapping[str, str]) -> None:
    for name, text in lines.items():
        echo(f"{name:<11} {text}")
    for line in plan["earlier_studies"]:
        echo(f"learns from {line}")
    for number, params in enumerate(plan["first_params"]):
        echo(f"trial {number:<5} " + " ".join(f"{name}={value}" for name, value in params.items()))


def data_lines(data_check: Mapping[str, Any]) -> list[str]:
    """Return problems in the data, and a table of its columns; empty if the task does not check data."""
    if not data_check:
        return []
    findings, columns = data_check["findings"], data_check.get("columns", ())
    said = [f"data: {line}" for line in findings[:MOST_FINDINGS]] or ["data: nothing unusual found"]
    more = len(findings) - MOST_FINDINGS
    said += [f"data: {more} more findings (--dry-run --json lists them)"] if more > 0 else []
    heads = ("column", "type", "example", "missing", "levels")
    cells = [[cut(one_line(str(one[head])), LONGEST_CELL) for head in heads] for one in columns[:MOST_COLUMNS]]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if cells:
        said += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *cells)]
    hidden = len(columns) - MOST_COLUMNS
    return said + ([f"... and {hidden} more columns (--dry-run --json lists them)"] if hidden > 0 else [])


def headlines(prepared: Prepared, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the main lines of a plan, by name."""
    spec = prepared.spec
    rungs = f"rungs {_listed(plan['rungs'])}" if plan["rungs"] else "no rungs"
    bounds = wanted_in_words(spec.constraint_records)
    goals = ", ".join(f"{one.metric} ({one.direction})" for one in spec.objective_records)
    advisor = spec.search.advisor
    advised = f"{shlex.join(advisor.command)}, at most {duration(advisor.seconds)} an answer" if advisor else ""
    return {
        "study": f"{spec.study}, in {redact(spec.store)}",
        "task": _task(prepared),
        "objectives": f"{goals}; {bounds}" if bounds else goals,
        "space": size_in_words(spec.space or Space({})),
        **({"advisor": advised} if advised else {}),
        "training": f"{plural(spec.training.epochs, 'epoch')}, {rungs}",
        "slots": f"{plan['slots']}, {plan['price']}",
        "budget": limits_in_words(usd_limit=spec.budget.usd, hours=spec.budget.hours, trials=spec.budget.trials),
        "cost": plan["expected_cost"],
    }


def _task(prepared: Prepared) -> str:
    shown = ", ".join(f"{name}={redact_deep(value)}" for name, value in prepared.spec.task_options.items())
    return cut(f"{prepared.spec.task} with {shown}" if shown else prepared.spec.task, LONGEST_TASK)


def _listed(epochs: Sequence[int]) -> str:
    return ", ".join(map(str, epochs))


def plan_of(prepared: Prepared, *, project: str | None = None) -> dict[str, Any]:
    """Return the document of `--dry-run --json`. Its costs come from studies of the project (None: all)."""
    spec, place = prepared.spec, prepared.place
    assembled = assemble(spec, place, earlier=prepared.earlier, source=prepared.source)
    setup = setup_of(spec, place, assembled.policy, prepared.base_folder, None)
    return {
        "study": spec.study,
        "spec": redact_deep(spec_to_mapping(spec)),
        "slots": f"{'up to ' if spec.resources.autoscale else ''}{place.slots} x {prepared.places.device_name}",
        "price": f"{usd(prepared.price.usd_per_slot_hour)} per slot and hour ({prepared.price.source})",
        "rungs": list(setup.policy.pruner.rungs(setup.epochs)),
        "milestones": list(setup.milestones),
        "earlier_studies": summary_of(prepared.earlier),
        "data_check": dict(prepared.data_check),
        "first_params": _first_params(assembled.suggester),
        "expected_cost": expected_cost(prepared, earlier_cost(prepared, project=project)),
    }


def _first_params(suggester: Suggester) -> list[dict[str, Any]]:
    told: list[Observation] = []
    for number in range(FIRST_TRIALS):
        suggestion = suggester.suggest(number, tuple(told))
        told.append(
            Observation(
                trial_id=number,
                params=suggestion.params,
                outcome="running",
                attributes=dict(suggestion.trial_attributes),
                snapshot=Snapshot(number=number, params=suggestion.params, state="running"),
            )
        )
    return [dict(one.params) for one in told]


_LARGE = 10**6


def size_in_words(space: Space) -> str:
    """Describe a space: kinds and names of parameters, number of configurations if finite, constraints."""
    if not len(space):
        return "no parameter, so all trials are equal"
    kinds = Counter(_kind(parameter_of(entry)) for _, entry in space.entries())
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    total = configurations(space)
    most = "at most " if space.constraints else ""
    size = "" if total is None else f", {most}{f'{total:,}' if total < _LARGE else f'about {total:.2g}'} configurations"
    kept = f"; every trial keeps {', '.join(space.constraints)}" if space.constraints else ""
    return f"{plural(len(space), 'parameter')} ({shown}){size}: {listed(space.names())}{kept}"


def configurations(space: Space) -> int | None:
    """Return the number of configurations, or None if a parameter is continuous."""
    entries = dict(space.entries())
    if any(isinstance(one := parameter_of(entry), Float) and one.step is None for entry in entries.values()):
        return None
    children: dict[str | None, list[str]] = {}
    for name, entry in entries.items():
        children.setdefault(entry.parent if isinstance(entry, Conditional) else None, []).append(name)

    def count(name: str) -> int:
        below = {child: entry for child in children.get(name, ()) if isinstance(entry := entries[child], Conditional)}
        special = {value for entry in below.values() for value in entry.values}
        plain = _values(parameter_of(entries[name])) - len(special)
        return plain + sum(prod(count(child) for child, entry in below.items() if entry.holds(v)) for v in special)

    return prod(count(root) for root in children.get(None, ()))


def _kind(parameter: Parameter) -> str:
    if isinstance(parameter, Categorical):
        return "of choices" if len(parameter.choices) > 1 else "constant"
    return "whole" if isinstance(parameter, Int) else "continuous" if parameter.step is None else "in steps"


def _values(parameter: Parameter) -> int:
    if isinstance(parameter, Categorical):
        return len(parameter.choices)
    step = parameter.step or 1
    return round((parameter.top - parameter.low) / step) + 1
