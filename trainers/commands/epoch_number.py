"""The key `epoch_from`: the epoch from a number that a program prints, such as `epoch + 1` or `step // 250`."""

import re
from dataclasses import dataclass

_FORM = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)|\((?P<inner>[A-Za-z_]\w*)(?P<first>[+-]\d+)\))(?://(?P<by>[1-9]\d*))?(?P<last>[+-]\d+)?"
)


@dataclass(frozen=True, slots=True)
class EpochNumber:
    """The epoch (n + first) / divisor + last of a printed number n, whose metric or group is called `name`."""

    name: str
    first: int
    divisor: int
    last: int

    @classmethod
    def of(cls, text: str) -> "EpochNumber":
        """Parse an expression; raises ValueError with the allowed form."""
        form = _FORM.fullmatch("".join(text.split()))
        if form is None:
            raise ValueError(f"found {text!r:.100}, allowed: a name, such as epoch + 1, step // 250, (step + 1) // 250")
        return cls(form["name"] or form["inner"], int(form["first"] or 0), int(form["by"] or 1), int(form["last"] or 0))

    def epoch(self, printed: object) -> int | None:
        """Return the epoch, None for a number between epochs, before the first one, or that is not whole."""
        try:
            epoch = (float(str(printed)) + self.first) / self.divisor + self.last
        except ValueError:
            return None
        return int(epoch) if epoch >= 1 and epoch.is_integer() else None
