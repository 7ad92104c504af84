"""Parameters that trials asked for as they ran: what is stored of them, and the space as far as it is known by them.

They are among a trial's parameters like any other. Beside its sampler's attributes stand the domains that its calls
named, and what the sampler has proposed for calls that the trial might make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from search_spaces.suggestions import Asked, Constant, Domain, are_compatible, from_plain

if TYPE_CHECKING:
    from studies.records.records import StudyRecord

ASKED, PROPOSED = "automl:asked", "automl:proposed"
"""Keys beside a sampler's attributes of a trial."""


def asked_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return what a trial has asked for, by its stored attributes."""
    return from_plain(attributes.get(ASKED))


def proposed_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return what a sampler has proposed to a trial, by its stored attributes."""
    return from_plain(attributes.get(PROPOSED))


def first_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return the first domain of each name, with which those of later trials have to go together.

    Args:
        trials: What each trial has asked for, in the order of their numbers.
    """
    first: dict[str, Domain] = {}
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant):
                first.setdefault(name, one.domain)
    return first


def latest_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return the latest domain of each name that goes together with its first one: a range may change."""
    trials = list(trials)
    first, latest = first_domains(trials), dict[str, Domain]()
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant) and are_compatible(first[name], one.domain):
                latest[name] = one.domain
    return latest


def known_space(study: StudyRecord) -> dict[str, Mapping[str, object]]:
    """Return the form of each parameter of a study: the declared ones, then those that its trials have asked for."""
    declared = study.spec.get("space")
    known: dict[str, Mapping[str, object]] = dict(declared) if isinstance(declared, Mapping) else {}
    learnt = latest_domains(trial.asked for trial in study.started)
    return known | {name: one.to_dict() for name, one in learnt.items() if name not in known}
