"""Modules of a task's folder beside the packages of this project."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from trainers.contract.task_loading import TaskLoadError, import_task
from trainers.contract.user_code import OUR_PACKAGES

TASK = "class Task:\n    pass\n"


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


PROGRAM = """
import sys
from trainers.contract.task_loading import import_task
sys.path.insert(0, sys.argv[1])
print(import_task("beside_a_checkout:Task", [sys.argv[1]]).__module__)
import reports, studies
print(reports.__file__ and studies.__file__)
"""


@pytest.mark.medium
def test_an_installed_package_is_used_beside_another_checkout(tmp_path):
    for name in OUR_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the other checkout')\n")
    (tmp_path / "beside_a_checkout.py").write_text(f"import reports, studies, trainers.protocol\n{TASK}")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["beside_a_checkout", str(ROOT / "studies" / "__init__.py")]


@pytest.mark.parametrize("name", OUR_PACKAGES)
def test_a_users_own_module_with_the_name_of_a_package_is_refused(tmp_path, name):
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(TaskLoadError, match=rf"{name}\.py would be imported instead of the installed package '{name}'"):
        import_task("digits", [str(tmp_path)])
