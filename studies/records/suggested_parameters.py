"""Parameters that trials requested at run time, and the search space that they define.

The values are among the trial's parameters. The trial's attributes hold domains, and proposals for later calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from search_spaces.space import CONSTRAINTS
from search_spaces.suggestions import Asked, Constant, Domain, are_compatible, from_plain

if TYPE_CHECKING:
    from studies.records.records import StudyRecord

ASKED, PROPOSED, ADVISED = "automl:asked", "automl:proposed", "automl:advised"
"""Keys in a trial's stored attributes, beside the sampler's own keys."""


def asked_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return the parameters that a trial requested, from its stored attributes."""
    return from_plain(attributes.get(ASKED))


def proposed_in(attributes: Mapping[str, object]) -> dict[str, Asked]:
    """Return a sampler's proposals for a trial, from its stored attributes."""
    return from_plain(attributes.get(PROPOSED))


def first_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return the first domain of each name, which later trials have to match; trials in the order of their numbers."""
    first: dict[str, Domain] = {}
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant):
                first.setdefault(name, one.domain)
    return first


def latest_domains(trials: Iterable[Mapping[str, Asked]]) -> dict[str, Domain]:
    """Return the latest domain of each name that is compatible with its first domain, since ranges may change."""
    trials = list(trials)
    first, latest = first_domains(trials), dict[str, Domain]()
    for asked in trials:
        for name, one in asked.items():
            if not isinstance(one.domain, Constant) and are_compatible(first[name], one.domain):
                latest[name] = one.domain
    return latest


def known_space(study: StudyRecord) -> dict[str, Mapping[str, object]]:
    """Return the form of each parameter of a study, declared parameters first, then those requested at run time."""
    declared = study.spec.get("space")
    known: dict[str, Mapping[str, object]] = dict(declared) if isinstance(declared, Mapping) else {}
    known.pop(CONSTRAINTS, None)
    learnt = latest_domains(trial.asked for trial in study.started)
    return known | {name: one.to_dict() for name, one in learnt.items() if name not in known}
