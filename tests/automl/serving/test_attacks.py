"""A small part of what `benchmarks/attacks.py` sends to real processes: the service, the dashboard, a model server."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import BENCHMARKS


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "attacks", raising=False)
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    import attacks  # type: ignore[import-not-found]

    # The benchmark measures seconds; here a machine with company is not a defect, and a server that hangs is one.
    monkeypatch.setattr(attacks, "SLOWEST_SECONDS", 30.0)
    monkeypatch.setattr(attacks, "END_SECONDS", 40.0)
    # Whatever a server does not withstand for a second, it does not withstand for five.
    for name in ("_half_requests", "_half_bodies", "_pipelined", "_endless_heads"):
        send = getattr(attacks, name)
        monkeypatch.setattr(attacks, name, lambda target, *what, send=send: send(target, *what[:-1], 1.0))
    return attacks


@pytest.mark.large
@pytest.mark.parametrize(("door", "requests"), [("access", 130), ("work", 80), ("clients", 300), ("ends", 20)])
def test_the_service_withstands(attacks: Any, door: str, requests: int) -> None:
    found = attacks.attack([door], 300, None)
    assert found.broken == []
    assert found.requests >= requests


@pytest.mark.large
def test_a_model_server_withstands(attacks: Any, people_model: Path) -> None:
    found = attacks.attack([], 300, people_model)
    assert found.broken == []
    assert found.requests >= 300
