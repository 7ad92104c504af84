"""Which files of the user's code a process has loaded, and what was in them when it did."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from trainers.contract.user_code import code_files, hash_of


def test_the_users_own_modules_are_known_as_they_were_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "own_task_with_parts.py": "import own_parts.layers\nimport installed_package\n",
        "own_parts/__init__.py": "",
        "own_parts/layers.py": "WIDTH = 3\n",
        "own_parts/unused.py": "",
        ".venv/lib/site-packages/installed_package.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / ".venv/lib/site-packages")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_task_with_parts")
    loaded = code_files([str(tmp_path)])
    assert list(loaded) == ["own_parts/__init__.py", "own_parts/layers.py", "own_task_with_parts.py"]
    layers = tmp_path / "own_parts" / "layers.py"
    assert loaded["own_parts/layers.py"] == hash_of(layers)
    layers.write_text("WIDTH = 4\n")
    assert code_files([str(tmp_path)]) == loaded, "this process still runs what it has loaded"
    assert loaded["own_parts/layers.py"] != hash_of(layers)


def test_our_own_code_is_none_of_the_users_and_the_root_of_a_file_system_is_a_folder() -> None:
    assert not code_files([str(Path(__file__).parents[2] / "trainers")])
    assert code_files([Path(__file__).anchor])
