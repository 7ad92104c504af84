"""`automl completion`: the script of each shell, and what it completes."""

import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import CliRunner

from automl.cli import COMMANDS, cli
from tests.support.command_line import AUTOML, InProcess
from tests.support.stored_study import StoredStudy


def completed(folder: Path, *words: str, store: str | None = None) -> list[str]:
    """What bash is told to offer for the last word."""
    asked = {"_AUTOML_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("automl", *words)), "AUTOML_STORE": store}
    with chdir(folder):
        done = CliRunner().invoke(cli, prog_name="automl", env=asked | {"COMP_CWORD": str(len(words))})
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_options_are_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, "") == sorted(COMMANDS)
    assert completed(tmp_path, "pr") == ["predict", "price", "promote", "prune-checkpoints"]
    assert "--sort" in completed(tmp_path, "trials", "--s")
    assert completed(tmp_path, "completion", "f") == ["fish"]


def test_studies_of_the_store_are_completed_newest_first(tmp_path: Path) -> None:
    study = StoredStudy(tmp_path)
    spec = dict(study.store.require("small").spec)
    for name in ("smaller", "other"):
        study.store.create_study(name, spec, str(tmp_path), 0.0)
    study.store.close()
    assert completed(tmp_path, "trials", "") == ["other", "smaller", "small"]
    assert completed(tmp_path, "status", "sm") == ["smaller", "small"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    url = f"sqlite:///{tmp_path}/automl.db"
    assert completed(elsewhere, "explain", "o") == []
    assert completed(elsewhere, "explain", "--store", url, "o") == ["other"]
    assert completed(elsewhere, "delete", "o", store=url) == ["other"]
    assert list(elsewhere.iterdir()) == [], "looking makes no store"


def test_a_store_that_cannot_be_read_completes_nothing(tmp_path: Path) -> None:
    (tmp_path / "automl.db").write_bytes(b"no database" * 100)
    assert completed(tmp_path, "trials", "") == []
    assert completed(tmp_path, "trials", "", store="postgresql://me@127.0.0.1:9/none") == []
    assert completed(tmp_path, "trials", "", store="nonsense") == []


@pytest.mark.medium
def test_completing_a_command_loads_no_heavy_library() -> None:
    heavy = ["torch", "ray", "optuna", "sqlalchemy", "mlflow", "plotly", "numpy", "pydantic", "rich"]
    code = (
        "import sys\nsys.argv = ['automl']\nfrom automl import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [name for name in {heavy!r} if name in sys.modules])"
    )
    environment = {
        **os.environ, "_AUTOML_COMPLETE": "bash_complete", "COMP_WORDS": "automl s", "COMP_CWORD": "1",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "plain,status" in done.stdout
    assert "LOADED []" in done.stdout


@pytest.mark.medium
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_its_shell(tmp_path, capsys, monkeypatch, shell):
    code, out, _ = InProcess(tmp_path, capsys, monkeypatch).run("completion", shell)
    assert code == 0
    assert f"_AUTOML_COMPLETE={shell}_complete" in out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=out, text=True, check=True)


@pytest.mark.medium
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = (
        'eval "$(automl completion bash)"\nCOMP_WORDS=(automl sta)\nCOMP_CWORD=1\n_automl_completion automl\n'
        'echo "offers ${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{Path(AUTOML).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "offers status" in done.stdout, done.stderr


def test_another_shell_is_refused(tmp_path, capsys, monkeypatch):
    line = InProcess(tmp_path, capsys, monkeypatch).refused("completion", "tcsh")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in line
