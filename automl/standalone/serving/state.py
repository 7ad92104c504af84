"""What a worker serves: a champion, perhaps a challenger, and what is wrong with the newest attempt to replace them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from .metrics import Metrics
from .roles import CHALLENGER, CHAMPION
from .served import Served, check_pair, load_served


class ServingState:
    """The models of a worker. It is changed in the event loop alone.

    Args:
        share: The challenger's share of the requests.
        metrics: Told which models are loaded.

    Attributes:
        models: The loaded models by role.
        problem: Why the newest model could not replace the one that is served; empty if all is well.
        is_draining: Whether the worker is about to end.
    """

    def __init__(self, share: float, metrics: Metrics) -> None:
        self.models: dict[str, Served] = {}
        self.problem = ""
        self.is_draining = False
        self._share, self._metrics = share, metrics
        self._draw = random.Random()
        self._places: Mapping[str, Any] = {}

    def pick(self, key: bytes) -> tuple[str, Served | None]:
        """Return the role and the model that answers the next request; None before one is loaded.

        Args:
            key: Requests with the same key are answered by the same role; an empty one lets chance decide.
        """
        if CHALLENGER in self.models and self._drawn(key) < self._share:
            return CHALLENGER, self.models[CHALLENGER]
        return CHAMPION, self.models.get(CHAMPION)

    def _drawn(self, key: bytes) -> float:
        """Return a number from 0 to 1, by chance or by the key."""
        if not key:
            return self._draw.random()
        return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest()) / 2**56

    def loaded(self, places: Mapping[str, Mapping[str, Any]], device: str, *, again: bool) -> dict[str, Served]:
        """Return the models at some places; called in a thread, since it takes a while.

        Args:
            places: Mapping of each role to its `path`, `version` and `fingerprint`; what has the fingerprint of a model
                that is served already is not loaded again.
            device: Where to compute.
            again: Whether to load also that.

        Raises:
            ServeError: One does not load, or they do not go together.
        """
        found = {}
        for role, place in places.items():
            if not again and role in self.models and self._places.get(role) == place:
                found[role] = self.models[role]
            else:
                found[role] = load_served(place["path"], place["version"], device)
        if CHALLENGER in found:
            check_pair(found[CHAMPION], found[CHALLENGER])
        return found

    def replace(self, models: Mapping[str, Served], places: Mapping[str, Any]) -> None:
        """Serve other models from the next request on; requests that wait are answered by those that they met."""
        for role, one in self.models.items():
            self._metrics.is_loaded(one.version, role, loaded=False)
        for role, one in models.items():
            self._metrics.is_loaded(one.version, role, loaded=True)
        self.models, self._places, self.problem = dict(models), dict(places), ""

    def versions(self) -> dict[str, str]:
        """Return the version of each role."""
        return {role: one.version for role, one in self.models.items()}
