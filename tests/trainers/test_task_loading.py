"""Modules of a task's folder beside the packages of this project."""

import sys

import pytest

import trainers
from trainers.contract.task_loading import TaskLoadError, import_task
from trainers.contract.user_code import OUR_PACKAGES
from trainers.tasks.digits import Digits

TASK = "class Task:\n    pass\n"


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("beside_a_checkout", None)


def test_an_installed_package_is_used_beside_another_checkout(tmp_path):
    for name in OUR_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the other checkout')\n")
    (tmp_path / "beside_a_checkout.py").write_text(f"import reports, studies, trainers.protocol\n{TASK}")
    assert import_task("digits", [str(tmp_path)]) is Digits
    assert import_task("beside_a_checkout:Task", [str(tmp_path)]).__module__ == "beside_a_checkout"
    assert sys.modules["trainers"] is trainers


@pytest.mark.parametrize("name", OUR_PACKAGES)
def test_a_users_own_module_with_the_name_of_a_package_is_refused(tmp_path, name):
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(TaskLoadError, match=rf"{name}\.py would be imported instead of the installed package '{name}'"):
        import_task("digits", [str(tmp_path)])
