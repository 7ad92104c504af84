"""Parameters that a trial requests at run time: proposed or drawn values."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from search_spaces.parameters import Value
from search_spaces.suggestions import Asked, Domain, are_compatible, drawn, in_words
from search_spaces.wording import shown
from trainers.protocol import TaskError, TrialSpec


def _told_to_nobody(_name: str, _asked: Asked) -> None:
    return


class Asking:
    """Answers the requests of one rank, equal on all ranks; calls `tell` once for each name."""

    def __init__(self, spec: TrialSpec) -> None:
        self._proposed, self._seed, self._trial = spec.proposed, spec.seed, spec.trial
        self._answered: dict[str, Asked] = {}
        self.tell: Callable[[str, Asked], None] = _told_to_nobody

    @property
    def is_allowed(self) -> bool:
        """Return whether the trial may request parameters."""
        return self._proposed is not None

    def value(self, name: str, domain: Domain) -> Value:
        """Return a parameter's value: as before, proposed, or drawn; TaskError if it contradicts another call."""
        if not isinstance(name, str) or not name:
            raise TaskError(f"name: found {shown(name)}, allowed: a text that is not empty")
        if name == "world_size":
            raise TaskError(
                "world_size: found a range that is worked out as the trial runs, which needs its ranks before that; "
                "allowed: a call with literal arguments, or space={'world_size': ...}"
            )
        before = self._answered.get(name)
        if before is not None:
            return self._again(name, before, domain)
        value = self._chosen(name, domain)
        self._answered[name] = Asked(value, domain)
        self.tell(name, self._answered[name])
        return value

    def _again(self, name: str, before: Asked, domain: Domain) -> Value:
        if not are_compatible(before.domain, domain) or not domain.contains(before.value):
            first, second = in_words(before.domain), in_words(domain)
            problem = f"found {second} after {first}, which gave {shown(before.value)}"
            raise TaskError(f"{name}: {problem}; allowed: a range with that value, or another name")
        return before.value

    def _chosen(self, name: str, domain: Domain) -> Value:
        """Return the proposed value if it is in the domain, which may differ between trials; otherwise draw one."""
        proposed = (self._proposed or {}).get(name)
        if proposed is not None and not are_compatible(proposed.domain, domain):
            problem = f"found {in_words(domain)} after {in_words(proposed.domain)} in an earlier trial"
            raise TaskError(f"{name}: {problem}; allowed: one kind and scale, and the same choices, or another name")
        if proposed is not None and domain.contains(proposed.value):
            return proposed.value
        return drawn(domain, seed=self._seed, trial=self._trial, name=name)

    def digest(self) -> int:
        """Return a number that is equal on ranks with equal requests; 0 without requests."""
        values = sorted((name, repr(one.value)) for name, one in self._answered.items())
        return zlib.crc32(repr(values).encode()) if values else 0
