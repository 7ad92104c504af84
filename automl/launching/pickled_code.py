"""Whether two pickles of a function say the same, though not with the same bytes.

Each run of the same code chooses some bytes anew: cloudpickle gives each class of a script or a notebook a random
tracker id, sets have the order of their hashes, which differs between processes, and a notebook's code names its
kernel's process or the number of the cell that was run.
"""

from __future__ import annotations

import pickletools
import re
from typing import Any

_TRACKER_ID = re.compile(r"[0-9a-f]{32}")
_AFTER_TRACKER_ID = [("NONE", None), ("TUPLE", None), ("REDUCE", None)]
"""What follows a tracker id: the last argument of cloudpickle's `_make_skeleton_class`, the end of them, the call."""
_CELL = re.compile(r"(?<=[/\\]ipykernel_)\d+(?=[/\\])|(?<=<ipython-input-)\d+(?=-)")
_LITERALS = frozenset({"NONE", "NEWTRUE", "NEWFALSE"})
_SETS = frozenset({"FROZENSET", "ADDITEMS"})
_Instruction = tuple[str, Any]


def say_the_same(one: bytes, other: bytes) -> bool:
    """Whether two pickles of functions differ in nothing but what each run of the same code chooses anew."""
    return one == other or _said(one) == _said(other)


def _said(pickled: bytes) -> list[_Instruction]:
    said = _instructions(pickled)
    ids: dict[str, int] = {}
    for place, (_, value) in enumerate(said):
        if isinstance(value, str) and _TRACKER_ID.fullmatch(value) and _is_tracker_id(said, place):
            said[place] = "tracker id", ids.setdefault(value, len(ids))
    return said


def _is_tracker_id(said: list[_Instruction], place: int) -> bool:
    """Whether a text of 32 digits stands where tracker ids do, and not where checksums and paths of the user's do."""
    return said[place + 1 : place + 1 + len(_AFTER_TRACKER_ID)] == _AFTER_TRACKER_ID


def _instructions(pickled: bytes) -> list[_Instruction]:
    """Return the instructions of a pickle, with members of sets in the same order whatever their hashes are.

    That order moves the numbers by which values are used again: values stand in place of their numbers here, and
    everything else is counted apart.
    """
    said: list[_Instruction] = []
    memo: list[_Instruction] = []
    objects = 0
    for operation, value, _ in pickletools.genops(pickled):
        name = operation.name
        if name == "MEMOIZE" and not _is_value(said[-1]):
            memo.append(("OBJECT", [objects]))
            objects += 1
        elif name == "MEMOIZE":
            memo.append(said[-1])
        elif name in {"BINGET", "LONG_BINGET"}:
            said.append(memo[int(value or 0)])
        elif name != "FRAME":
            if name in _SETS:
                _sort_members(said)
            said.append((name, _CELL.sub("", value) if isinstance(value, str) else value))
    return said


def _is_value(instruction: _Instruction) -> bool:
    name, value = instruction
    return name in _LITERALS or isinstance(value, str | bytes | int | float)


def _sort_members(said: list[_Instruction]) -> None:
    """Sort what follows the latest mark, if these are values."""
    start = 1 + max(place for place, (name, _) in enumerate(said) if name == "MARK")
    if all(map(_is_value, said[start:])):
        said[start:] = sorted(said[start:], key=repr)
