"""Differences between two specs, to check that a repeated launch has the spec of the stored study."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from search_spaces.messages import LONGEST_VALUE, cut, in_full, shown
from studies.spec.spec_errors import Path, dotted
from studies.spec.study_spec import CHANGEABLE, StudySpec, spec_to_mapping

NOT_COMPARED = (*CHANGEABLE, "store", "mlflow")  # keys in which two specs of one study may differ

_CONTEXT = 15  # number of equal characters that are printed before the first one that differs


class _Nothing:
    """Placeholder for a key or entry that one spec lacks."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def differences(stored: StudySpec, given: StudySpec) -> list[str]:
    """Return the differences of two specs, apart from `NOT_COMPARED`: `training.epochs: 20 in the store, 30 given`."""
    return [
        "{}: {} in the store, {} given".format(dotted(path), *_shown_apart(before, after))
        for path, before, after in _differing(spec_to_mapping(stored), spec_to_mapping(given))
        if path[0] not in NOT_COMPARED
    ]


def differing_keys(stored: StudySpec, given: StudySpec, sections: Sequence[str]) -> list[str]:
    """Return the dotted keys of these sections whose values differ."""
    found = _differing(spec_to_mapping(stored), spec_to_mapping(given))
    return [dotted(path) for path, _, _ in found if path[0] in sections]


def _differing(before: object, after: object, path: Path = ()) -> Iterator[tuple[Path, object, object]]:
    """Yield different values with their paths; only the first of a list, since an insertion moves all others."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differing(before.get(key, _NOTHING), after.get(key, _NOTHING), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(itertools.zip_longest(before, after, fillvalue=_NOTHING))
        yield from itertools.islice((one for i, pair in pairs for one in _differing(*pair, (*path, i))), 1)
    elif in_full(before) != in_full(after):  # as texts: the store has no passwords, and true is not 1
        yield path, before, after


def _shown_apart(before: object, after: object) -> tuple[str, str]:
    """Return both values, shortened for a message; starting where they differ if that is later."""
    one, other = in_full(before), in_full(after)
    equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    if equal < LONGEST_VALUE - _CONTEXT:
        return shown(before), shown(after)
    return f"... {cut(one[equal - _CONTEXT :])}", f"... {cut(other[equal - _CONTEXT :])}"
