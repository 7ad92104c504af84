"""What happens around the sessions of a launch."""

from contextlib import closing
from dataclasses import replace

import pytest

from automl.launching import study_run
from automl.launching.launch_or_resume import find_or_create
from automl.launching.prepared_study import prepare
from automl.launching.study_run import Watcher, drive
from studies.gangs.simulated import Curve, SimulatedPool
from studies.spec.study_spec import parse_spec
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS, ViewsInThisProcess
from tests.support.simulated_study import Params, smooth_curve


@pytest.mark.medium
def test_views_start_again_when_a_study_goes_on_after_it_waited_for_a_disk(tmp_path, monkeypatch):
    """Their process may have died meanwhile."""
    curves: list[Curve] = []
    starts: list[str] = []

    def curve(params: Params, world_size: int) -> Curve:
        fails_at = None if curves else {1: (1, "storage")}
        curves.append(replace(smooth_curve(params, world_size), fails_at=fails_at))  # type: ignore[arg-type]
        return curves[-1]

    class Noting(ViewsInThisProcess):
        def start(self) -> None:
            starts.append(self._study)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_run, "RayPool", lambda **_: SimulatedPool(curve))
    monkeypatch.setattr(study_run, "ViewsProcess", Noting)
    changes = {"store": f"sqlite:///{tmp_path}/automl.db", "mlflow": "off", "budget": {"trials": 2}}
    spec = parse_spec({**DIGITS, **changes, "search": {"sampler": "random", "pruner": "none"}})
    prepared = prepare(spec, source="spec", base_folder=tmp_path)
    warnings: list[str] = []
    with closing(Store(prepared.spec.store)) as store:
        outcome = drive(store, find_or_create(store, prepared), prepared, Watcher(warn=warnings.append))
    assert [line for line in warnings if "checkpoints cannot be written" in line]
    assert (outcome.record.state, outcome.record.stop_reason) == ("closed", "budget_trials")
    assert starts == ["small", "small"]
