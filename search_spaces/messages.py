"""Errors that end a command with a message of one line, and texts for messages.

    Exception
    ├── UserError   the input is wrong
    │   └── SpecError, SpaceError, StoreError, PoolError, SearchError, TaskLoadError, CurvesError, DashboardError
    └── RunError    the input is right, and the work failed
        └── TrainingError, LeaseLostError, StoppedError

The two classes have different exit codes. All other exceptions are mistakes in this program.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

LONGEST_VALUE = 60
LONGEST_LIST = 24
LARGEST_IN_FULL = 1e15  # size from which numbers are printed with a power of ten
MOST_COMPARED = 1_000_000  # most letters of a name, times letters of all valid names, in a search for the nearest
SHORTEST_PREFIX = 3
"""Least number of letters that select the only name that begins with them: `min` means `minimize`."""

# Greedy up to the last @, since a password may contain @, / or :. Hiding too much of an odd URL is the safe mistake.
_USER_INFO = re.compile(r"(?<=://)(?:[^\s/:@]*:\S*|[^\s/@]+)@")
_QUERY_SECRET = re.compile(r"(?i)(?<=[?&])((?:password|passwd|pwd|token|secret|access_key|api_key)=)[^&\s\"'#]+")
# Quoted, bracketed and code parts are skipped, since they may hold sentences of a user or of a library.
_CURE_BEGINS = re.compile(r"""\([^()]*\)|`[^`]*`|(?<!\w)'[^']*'|"[^"]*"|(\. (?=[A-Z`])|; (?=did you mean ))""")


def one_line(text: str) -> str:
    """Replace unprintable characters, including line breaks, by escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def without_password(text: str) -> str:
    """Replace user, password and secrets in the query of each URL in a text by `***`."""
    return _QUERY_SECRET.sub(r"\1***", re.sub(r"\S+", _without_user_info, text))


def _without_user_info(word: re.Match[str]) -> str:
    # The pattern ends at the last @ of a word: searched for in what follows it, each :// would be read to its end.
    begin, at, end = word[0].rpartition("@")
    return _USER_INFO.sub("***@", begin + at) + end


def in_full(value: object) -> str:
    """Format a value as YAML, without passwords."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return one_line(without_password(repr(value)))


def shown(value: object) -> str:
    """Format a value as YAML, cut for a message, so that different values may look equal."""
    return cut(in_full(value))


def cut(text: str) -> str:
    """Cut a text to `LONGEST_VALUE` characters."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 4]} ..."


def install_command(extra: str) -> str:
    """Return the command that installs optional packages. This project is on no package index."""
    return f"pip install -c constraints.txt -e '.[{extra}]' in the checkout"


def significant(value: float, digits: int) -> str:
    """Format a number with `digits` significant digits, large numbers in full: 99.7 with two digits is `100`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < LARGEST_IN_FULL else f"{value:.{digits}g}"


def listed(names: Iterable[str]) -> str:
    """Join names with commas. A long list is cut, and its length added."""
    names = list(names)
    if len(names) <= LONGEST_LIST:
        return ", ".join(names)
    return f"{', '.join(names[:LONGEST_LIST])}, ... ({len(names)} in all)"


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the most similar valid name, or None."""
    if not isinstance(name, str):
        return None
    lower = name[:100].lower()
    by_lower = {valid.lower(): valid for valid in names}
    longer = [valid for valid in by_lower if valid.startswith(lower)] if len(lower) >= SHORTEST_PREFIX else []
    if len(longer) == 1:
        return by_lower[longer[0]]
    if len(lower) * sum(map(len, by_lower)) > MOST_COMPARED:
        return None
    surer = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.7)
    # Short words need less similarity, but the same first letter: gpu is not cpu.
    others = [valid for valid in by_lower if valid[:1] == lower[:1]]
    close = surer or difflib.get_close_matches(lower, others, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def meant(name: object, names: Iterable[str]) -> str:
    """Return `; did you mean 'width'?` for the most similar valid name, or ""."""
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else ""


def near_file(path: Path, pattern: str = "*") -> str:
    """Return `; did you mean 'wine.yaml'?` for the existing file with the most similar name, or ""."""
    return meant(path.name, [one.name for one in path.absolute().parent.glob(pattern)])


def found(value: object, allowed: str, suggestion: str | None = None) -> str:
    """Return the message for a refused value."""
    hint = f"; did you mean '{suggestion}'?" if suggestion is not None and suggestion != value else ""
    return f"found {shown(value)}, allowed: {allowed}{hint}"


def problem_and_cure(message: str) -> tuple[str, str]:
    """Split a message after its first sentence, or before a suggestion. The second part may be empty."""
    for match in _CURE_BEGINS.finditer(message):
        if match[1]:
            return message[: match.start()], message[match.end()].upper() + message[match.end() + 1 :]
    return message, ""


class UserError(Exception):
    """The user's input is wrong. The message names the place, the value and the allowed values."""

    def _render_traceback_(self) -> list[str]:
        """Make IPython show only the message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class RunError(Exception):
    """The work failed although the input is right. The same command may succeed later."""


class StoppedError(RunError):
    """A signal or `automl stop` (`by_command`) ended the work, which may continue elsewhere. Exit code 130."""

    def __init__(self, message: str, *, by_command: bool = False) -> None:
        super().__init__(message)
        self.by_command = by_command
