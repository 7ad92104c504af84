"""What a controller does to Python's garbage collector ends with it."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest

from studies.control import session


class Node:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.medium
def test_objects_are_set_aside_until_the_block_ends() -> None:
    before = gc.get_freeze_count()
    old = Node()
    found = weakref.ref(old)
    with session.set_aside():
        assert gc.get_freeze_count() > before
        del old
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
        assert found() is not None
    gc.collect()
    assert found() is None
    assert gc.get_freeze_count() == 0


def test_nothing_is_collected_meanwhile_also_if_it_fails() -> None:
    with suppress(KeyError), session.none_meanwhile():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with session.none_meanwhile():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
