"""What of the user's environment ranks on other machines see."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.gangs.pool_protocol import GangFailed, Measured
from studies.gangs.rank_environment import handed_over
from tests.support.ray_pool import FOLDER, LentPool, train_to, trial_spec
from trainers.contract.task_loading import TaskLoadError, load_task

HERE = {
    "NCCL_SOCKET_IFNAME": "eth0", "HF_HOME": "/models", "CUDA_VISIBLE_DEVICES": "3", "CUDA_LAUNCH_BLOCKING": "1",
    "DATA": "/data", "PASSWORD": "x",
}  # fmt: skip


def test_settings_of_libraries_and_named_variables_are_handed_over_and_no_others() -> None:
    assert handed_over(["DATA", "MISSING"], HERE) == {
        "NCCL_SOCKET_IFNAME": "eth0", "HF_HOME": "/models", "CUDA_LAUNCH_BLOCKING": "1", "DATA": "/data",
    }  # fmt: skip


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize("environment", [{"SET_BY_USER": "a value"}, {}])
def test_a_rank_on_a_joined_cluster_sees_them(tmp_path: Path, environment: dict[str, str]) -> None:
    pool = LentPool(slots=1, environment=environment)
    needs = {"task": "faulty_tasks:NeedsVariable", "python_path": (FOLDER,), "params": {"learning_rate": 0.05}}
    try:
        last = train_to(pool, trial_spec(1, tmp_path, world_size=1, **needs), (0,), 1)[-1]
    finally:
        pool.pool.close()
    if environment:
        assert isinstance(last, Measured), last
    else:
        assert isinstance(last, GangFailed)
        assert "KeyError: 'SET_BY_USER'" in last.message


def test_a_task_whose_folder_a_machine_has_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskLoadError, match=r"the folder .*nowhere is not on this machine \(.*\)\. Put the code into"):
        load_task("no_such_module:Task", {}, (str(tmp_path / "nowhere"),))
