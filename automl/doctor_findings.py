"""Findings of `automl doctor`."""

from collections.abc import Callable
from typing import Any

from studies.redact import redact

LONGEST = 300  # most characters of an unexpected error's message


class WrongError(Exception):
    """A check failed. An empty `cure` takes the check's own cure."""

    def __init__(self, found: str, cure: str = "") -> None:
        super().__init__(found)
        self.cure = cure


def finding(what: str, check: Callable[[], str], cure: str = "") -> dict[str, Any]:
    """Return the finding of a check: `what`, `ok`, `found`, and `cure`, which is empty without a problem."""
    try:
        return {"what": what, "ok": True, "found": check(), "cure": ""}
    except WrongError as error:
        return {"what": what, "ok": False, "found": redact(str(error)), "cure": error.cure or cure}
    except Exception as error:  # noqa: BLE001 - any error is the finding
        return {"what": what, "ok": False, "found": redact(" ".join(str(error).split())[:LONGEST]), "cure": cure}
