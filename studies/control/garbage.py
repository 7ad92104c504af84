"""Python's garbage collector beside a controller: objects that stay until its end are not looked at again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def set_aside() -> Iterator[None]:
    """Set aside all objects that there are now for as long as the block runs.

    A full collection stops all threads. Libraries and what a resumed study knows of its trials are some hundred
    thousand objects, which took it 80 ms at a time and are never garbage.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def none_meanwhile() -> Iterator[None]:
    """Collect nothing while the block makes many objects that stay: each look at all of them would find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
