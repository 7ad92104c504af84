"""`automl launch --dry-run`: prints what would run and what it may cost, and writes nothing."""

from __future__ import annotations

import json
from typing import Any

import yaml

from automl.launching.earlier_studies import summary_of, with_earlier
from automl.launching.preparing import Prepared
from automl.terminal.echo import echo
from reports.wording import usd
from studies.control.assembly import assemble, setup_of
from studies.redact import redact_deep
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.protocol import Suggester
from studies.spec.study_spec import spec_to_mapping

FIRST_TRIALS = 3


def show(prepared: Prepared, *, as_json: bool) -> None:
    """Print the resolved spec, the slots, the first parameters and the expected cost."""
    plan = plan_of(with_earlier(prepared))
    if as_json:
        echo(json.dumps(plan, allow_nan=False))
        return
    echo(yaml.safe_dump(plan["spec"], sort_keys=False, allow_unicode=True))
    for name in ("slots", "price", "rungs", "milestones", "expected_cost"):
        echo(f"{name.replace('_', ' ')}: {plan[name]}")
    for line in plan["earlier_studies"]:
        echo(f"learns from {line}")
    for number, params in enumerate(plan["first_params"]):
        echo(f"trial {number}: " + " ".join(f"{name}={value}" for name, value in params.items()))
    for warning in prepared.warnings:
        echo(f"warning: {warning}")


def plan_of(prepared: Prepared) -> dict[str, Any]:
    """Return the plan as plain data: the JSON of `automl launch --dry-run --json`."""
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
        "first_params": _first_params(assembled.suggester),
        "expected_cost": _expected_cost(prepared),
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


def _expected_cost(prepared: Prepared) -> str:
    """The price of an hour and the limits of the budget: how long an epoch takes is not known before the first."""
    budget = prepared.spec.budget
    an_hour = prepared.place.slots * prepared.price.usd_per_slot_hour
    limits = [
        usd(budget.usd) if budget.usd is not None and an_hour > 0 else "",
        f"{usd(budget.hours * an_hour)} (budget.hours = {budget.hours:g})" if budget.hours is not None else "",
    ]
    at_most = " or ".join(limit for limit in limits if limit) or "no limit but the number of trials"
    return f"{usd(an_hour)} an hour for {prepared.place.slots} slots; at most {at_most}, whichever comes first"
