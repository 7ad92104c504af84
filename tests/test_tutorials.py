"""The programs and specs of the tutorials: pages show them as they are, and they work."""

import http.server
import json
import re
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from studies.spec.study_spec import parse_spec
from tests.support import newcomer
from tests.support.command_line import InProcess, Workplace
from tests.support.newcomer import Newcomer
from tests.support.paths import EXAMPLES, ROOT
from tests.support.ray_pool import LentPool

FILES = EXAMPLES / "tutorials"
PAGES = {page.stem: page for page in (ROOT / "docs" / "tutorials").glob("*.md")}
SHOWN = {
    "two-gpus": ("two-gpus.yaml",), "pruning": ("pruning.yaml",), "budgets": ("budgets.yaml",),
    "own-task": ("diabetes.py", "diabetes.yaml"), "team-service": ("team.yaml",),
    "study-to-http": ("flowers.yaml", "ask.py"), "cluster": ("cluster.yaml",),
    "after-a-crash": ("crash.yaml", "crash.py"), "report": ("report.py",),
}  # fmt: skip
"""Files of examples/tutorials that each page shows in parts."""


def spec_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((FILES / name).read_text(encoding="utf-8"))
    return spec


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Workplace:
    newcomer.tutorials(tmp_path)
    return Workplace(tmp_path, warm_pool, has_mlflow=False)


def test_pages_show_what_is_in_the_files() -> None:
    assert set(SHOWN) == set(PAGES)
    for name, files in SHOWN.items():
        page = PAGES[name]
        text = page.read_text(encoding="utf-8")
        assert all(f"(../../examples/tutorials/{file})" in text for file in files), name
        specs = [spec_of(file) for file in files if file.endswith(".yaml")]
        for spec in specs:
            assert parse_spec(spec).study == spec["study"]
        for shown in map(yaml.safe_load, blocks(page, "yaml")):
            assert any(shown.items() <= spec.items() for spec in specs), name
        code = "".join((FILES / file).read_text(encoding="utf-8") for file in files)
        missing = [line for block in blocks(page, "python") for line in block.splitlines() if line.strip() not in code]
        assert missing == [], name


def test_every_file_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [file.name for file in FILES.iterdir() if file.is_file() and f"tutorials/{file.name})" not in pages] == []


@pytest.mark.ray
@pytest.mark.medium
def test_a_study_with_pauses_is_explained_and_its_report_is_read(place, capsys, monkeypatch):
    place.run("launch", place.spec(spec_of("pruning.yaml"), budget="6 trials", mlflow="off"))
    decisions = [one for trial in range(6) for one in place.json("explain", "pruning", trial)["decisions"]]
    assert {one["action"] for one in decisions} >= {"pause", "continue"}
    assert any("hypervolume per dollar" in one["reason"] for one in decisions)
    monkeypatch.chdir(place.folder)
    assert "trade_off" in runpy.run_path(str(FILES / "report.py"))["read"]("pruning").figures
    assert "train" in capsys.readouterr().out


@pytest.mark.ray
@pytest.mark.medium
def test_a_task_that_estimates_a_number(place: Workplace) -> None:
    summary = place.json("launch", place.spec(spec_of("diabetes.yaml"), budget="2 trials", mlflow="off"))
    assert summary["trials"]["complete"] >= 1
    assert "val_mae" in summary["archive"][0]["values"]


@pytest.mark.ray
@pytest.mark.medium
def test_a_script_that_nobody_has_changed(place: Workplace) -> None:
    spec = place.spec(spec_of("script.yaml"), budget="2 trials", resources={"slots": 2}, mlflow="off")
    trials = place.json("launch", spec)["trials"]
    assert trials["complete"] + trials["pruned"] == 2


def test_a_member_queues_a_study(tmp_path, capsys, monkeypatch):
    newcomer.tutorials(tmp_path)
    here = InProcess(tmp_path, capsys, monkeypatch)
    assert here.run("submit", "team.yaml")[0] == 0
    code, listed, _ = here.run("queue", "--json")
    assert code == 0
    assert [job["study"] for job in json.loads(listed)] == ["team"]


def test_what_a_cluster_reads_is_written(tmp_path, capsys, monkeypatch):
    newcomer.tutorials(tmp_path)
    here = InProcess(tmp_path, capsys, monkeypatch)
    assert here.run("export-cluster", "slurm", "cluster.yaml", "--nodes", "2", "--out", "cluster.sbatch")[0] == 0
    assert "automl" in (tmp_path / "cluster.sbatch").read_text(encoding="utf-8")


class BusyOnce(http.server.BaseHTTPRequestHandler):
    """Answers 503 once, and then each row with a flower."""

    asked: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        self.asked.append(rows)
        is_busy = len(self.asked) == 1
        answers = [{"label": "setosa", "confidence": 0.9} for _ in rows]
        self.send_response(503 if is_busy else 200)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(json.dumps({"detail": "busy"} if is_busy else {"answers": answers}).encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def busy_url() -> Iterator[str]:
    BusyOnce.asked.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), BusyOnce) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_client_asks_a_busy_server_again(busy_url: str) -> None:
    ask = runpy.run_path(str(FILES / "ask.py"))["ask"]
    rows = [{"petal length (cm)": "1.4"}, {"petal length (cm)": "5.1"}]
    assert [one["label"] for one in ask(rows, busy_url)] == ["setosa", "setosa"]
    assert BusyOnce.asked == [rows, rows]


@pytest.mark.slow
@pytest.mark.large
def test_a_killed_study_loses_nothing(tmp_path: Path) -> None:
    newcomer.tutorials(tmp_path)
    said = Newcomer(tmp_path).types("python crash.py")
    assert "killed:  running" in said
    assert "resumed: closed" in said
