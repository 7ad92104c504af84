"""Detects trials whose processes hang: they send no report for too long."""

from dataclasses import dataclass

from studies.spec.sections import FaultsSpec

MOST_SECONDS_PER_LOOK = 5.0
"""Longest silence counted between two checks: a suspended controller receives no reports."""
FEWEST_LOOKS = 4  # smallest number of checks before silence ends an attempt


@dataclass(kw_only=True, slots=True)
class _Silence:
    factor: float
    allowed_seconds: float
    seconds: float = 0.0
    is_new: bool = True


class Watchdog:
    """Measures for how long running trials have sent no report, from `now` on."""

    def __init__(self, limits: FaultsSpec, now: float) -> None:
        self._limits = limits
        self._looked_at = now
        self._silences: dict[int, _Silence] = {}

    def started(self, gang: int, timeouts: int = 0) -> None:
        """Watch the trial with the id `gang`; each earlier timeout doubles its allowed silence."""
        factor = 2.0**timeouts
        self._silences[gang] = _Silence(factor=factor, allowed_seconds=factor * self._limits.start_seconds)

    def heard(self, gang: int, *, is_first: bool = False) -> None:
        """Record a report of the trial with the id `gang`."""
        if silence := self._silences.get(gang):
            limit = self._limits.start_seconds if is_first else self._limits.silence_seconds
            silence.allowed_seconds, silence.seconds, silence.is_new = silence.factor * limit, 0.0, True

    def ended(self, gang: int) -> None:
        """Stop watching the trial with the id `gang`."""
        self._silences.pop(gang, None)

    def hung(self, now: float) -> dict[int, float]:
        """Return trials that hang, with the seconds of their silence."""
        passed = min(max(now - self._looked_at, 0.0), MOST_SECONDS_PER_LOOK)
        self._looked_at = now
        for silence in self._silences.values():
            if not silence.is_new:
                silence.seconds += min(passed, silence.allowed_seconds / FEWEST_LOOKS)
            silence.is_new = False
        return {gang: one.seconds for gang, one in self._silences.items() if one.seconds >= one.allowed_seconds}


def no_sign_of_life(silence_seconds: float) -> str:
    """Return the error message of a trial that hung."""
    return f"no rank reported for {silence_seconds:.0f} s (limits: faults.start_seconds, faults.silence_seconds)"
