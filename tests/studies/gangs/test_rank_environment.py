"""What of the user's environment ranks on other machines see."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.gangs.rank_environment import handed_over
from trainers.contract.task_loading import TaskLoadError, load_task

HERE = {
    "NCCL_SOCKET_IFNAME": "eth0", "HF_HOME": "/models", "CUDA_VISIBLE_DEVICES": "3", "CUDA_LAUNCH_BLOCKING": "1",
    "DATA": "/data", "PASSWORD": "x",
}  # fmt: skip


def test_settings_of_libraries_and_named_variables_are_handed_over_and_no_others() -> None:
    assert handed_over(["DATA", "MISSING"], HERE) == {
        "NCCL_SOCKET_IFNAME": "eth0", "HF_HOME": "/models", "CUDA_LAUNCH_BLOCKING": "1", "DATA": "/data",
    }  # fmt: skip


def test_a_task_whose_folder_a_machine_has_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskLoadError, match=r"the folder .*nowhere is not on this machine \(.*\); allowed: a folder"):
        load_task("no_such_module:Task", {}, (str(tmp_path / "nowhere"),))
