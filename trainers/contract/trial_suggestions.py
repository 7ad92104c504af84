"""Parameters that a trial requests at run time: proposed or drawn values."""

import zlib
from collections.abc import Callable

from search_spaces.messages import shown
from search_spaces.parameters import Value
from search_spaces.suggestions import Asked, Domain, are_compatible, drawn, in_words
from trainers.protocol import TaskError, TrialSpec


def _told_to_nobody(_name: str, _asked: Asked) -> None:
    return


_ELSEWHERE = {
    "set_user_attr": "Report numbers by trial.report, and print texts: `automl logs` shows them",
    "should_prune": "The loop over trial.epochs ends trials that are pruned",
    "suggest_": "Its parameters are in trial.params, from the space",
}
"""Advice for members of an Optuna trial that our trials lack, by the beginning of their names."""


def no_member(name: str, allowed: str) -> AttributeError:
    """Return the error of a member that trials lack."""
    cure = next((f". {cure}" for known, cure in _ELSEWHERE.items() if name.startswith(known)), "")
    return AttributeError(f"trial.{name} does not exist {allowed}{cure}")


class Asking:
    """Returns the parameters that one rank requests, the same on all ranks; calls `tell` once for each name."""

    def __init__(self, spec: TrialSpec) -> None:
        self._proposed, self._seed, self._trial = spec.proposed, spec.seed, spec.trial
        self._answered: dict[str, Asked] = {}
        self.tell: Callable[[str, Asked], None] = _told_to_nobody

    @property
    def is_allowed(self) -> bool:
        """Return whether the trial may request parameters."""
        return self._proposed is not None

    def value(self, name: str, domain: Domain) -> Value:
        """Return a parameter's value: as in an earlier call, proposed, or drawn; TaskError if two calls differ."""
        if not isinstance(name, str) or not name:
            raise TaskError(f"name: found {shown(name)}, allowed: a text that is not empty")
        if name == "world_size":
            raise TaskError(
                "world_size: this range is computed while the trial runs, but the trial needs its ranks before. Write "
                "literal arguments in the call, or set space={'world_size': ...}"
            )
        before = self._answered.get(name)
        if before is not None:
            if not are_compatible(before.domain, domain) or not domain.contains(before.value):
                first, second = in_words(before.domain), in_words(domain)
                problem = f"an earlier call with {first} gave {shown(before.value)}, but this call has {second}"
                raise TaskError(f"{name}: {problem}. Keep the value in the range, or use another name")
            return before.value
        value = self._chosen(name, domain)
        self._answered[name] = Asked(value, domain)
        self.tell(name, self._answered[name])
        return value

    def _chosen(self, name: str, domain: Domain) -> Value:
        """Return the proposed value if it is in the domain, which may differ between trials; otherwise draw one."""
        proposed = (self._proposed or {}).get(name)
        if proposed is not None and not are_compatible(proposed.domain, domain):
            problem = f"found {in_words(domain)}, but an earlier trial had {in_words(proposed.domain)}"
            raise TaskError(f"{name}: {problem}. Keep kind, scale and choices the same, or use another name")
        if proposed is not None and domain.contains(proposed.value):
            return proposed.value
        return drawn(domain, seed=self._seed, trial=self._trial, name=name)

    def digest(self) -> int:
        """Return a number that is equal on ranks with equal requests; 0 without requests."""
        values = sorted((name, repr(one.value)) for name, one in self._answered.items())
        return zlib.crc32(repr(values).encode()) if values else 0
