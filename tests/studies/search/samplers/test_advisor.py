"""Advisors: what a program is told, that its proposals compete by index, and that no mistake of it ends a search."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from automl.terminal.explanation import print_explanation
from search_spaces.parameters import Value
from search_spaces.space import Space
from studies.money.budget import Limits
from studies.search.acquisition.acquisition import INITIAL_TRIALS
from studies.search.model.curve_model import CurveModel
from studies.search.observations import Observation
from studies.search.samplers.advisor import MOST_FAILURES, Advisor, AdvisorError, AdvisorProgram
from studies.search.samplers.model_suggester import ADVISED_SHARE, ModelSuggester
from tests.studies.search.samplers.test_model_suggester import observation, problem
from tests.support.simulated_study import SimulatedStudy

SPACE = Space.from_dict(
    {
        "width": (8, 4096, "log"),
        "depth": (1, 8),
        "optimizer": ["sgd", "adamw"],
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
        "constraints": ["depth * width <= 8192"],
    }
)


class Told:
    """A source in this process: the same answer to every question."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.questions = 0

    def answer(self, history: Sequence[Observation]) -> object:
        self.questions += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def close(self) -> None:
        pass


def suggested(source: Told | None, trials: int) -> list[Mapping[str, Value]]:
    advisor = None if source is None else Advisor(SPACE, source, seed=1, background=False)
    suggester = ModelSuggester(CurveModel(problem(SPACE)), seed=1, advisor=advisor)
    history: list[Observation] = []
    for number in range(trials):
        history.append(observation(number, suggester.suggest(number, tuple(history)).params))
    return [one.params for one in history]


def program(tmp_path: Path, code: str, *, seconds: float = 60.0) -> AdvisorProgram:
    (tmp_path / "advise.py").write_text(code, encoding="utf-8")
    command = ["python", "advise.py"]
    return AdvisorProgram(
        command, seconds=seconds, folder=tmp_path, about={"epochs": 9}, metrics=["val_error", "cost_usd"]
    )


@pytest.mark.medium
def test_a_study_says_which_trials_its_advisor_proposed(tmp_path: Path) -> None:
    source = Told([{"learning_rate": 0.02, "width": width} for width in range(40, 60)])

    class Advised(SimulatedStudy):
        def _sampler(self) -> ModelSuggester:
            advisor = Advisor(self.space, source, seed=0, background=False)
            return ModelSuggester(CurveModel(self.problem), seed=0, advisor=advisor)

    study = Advised(tmp_path)
    study.run(Limits(trials=40))
    record = study.record()
    advised = [one for one in record.started if one.is_advised]
    assert [one.number for one in advised] == [
        one.number for one in record.started if one.params["learning_rate"] == 0.02
    ]
    assert 1 <= len(advised) <= 20
    printed = StringIO()
    print_explanation(Console(file=printed), record, advised[0])
    assert "the advisor proposed these parameters" in printed.getvalue()


ADVICE = [{"width": 8 + place, "depth": 8, "optimizer": "adamw"} for place in range(20)]


@pytest.mark.medium
def test_a_useless_advisor_gets_a_tenth_of_the_suggestions_and_they_keep_the_constraints() -> None:
    """Depth is what makes these trials poor, so by index they would hardly be chosen."""
    beyond = [{"width": 4096, "depth": 8, "optimizer": "adamw"}, {"width": 9999}, {"depth": "deep"}, {"layers": 2}]
    tried = suggested(Told([*beyond, *ADVICE]), 40)
    taken = [one for one in tried if one in ADVICE]
    assert 1 <= len(taken) <= 3 * ADVISED_SHARE * 40
    assert not any(one in ADVICE for one in tried[:INITIAL_TRIALS]), "nothing can be valued yet"
    assert all(map(SPACE.allows, tried))
    assert tried[:20] == suggested(Told([*beyond, *ADVICE]), 20), "suggestions repeat"


@pytest.mark.medium
def test_without_proposals_an_advisor_changes_nothing() -> None:
    assert suggested(Told([]), 8) == suggested(None, 8)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (AdvisorError("it was lost"), "it was lost"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        ("take width 64", "it printed 'take width 64' instead of a list of mappings"),
        ({"width": 64}, "it printed {'width': 64} instead of a list of mappings"),
        ([64], "it printed [64] instead of a list of mappings"),
        ([{"width": 5000}], "none of its 1 proposals is in the space (width: found 5000"),
        ([{"width": 4096, "depth": 8}], "(constraints: found depth=8, width=4096, allowed: "),
        ([{"width": [64]}], "(width: found [64]"),
        ([{"width": float("nan")}], "(width: found nan"),
    ],
)
def test_failures_are_one_warning_and_after_three_in_a_row_nothing_is_asked(answer, says, caplog):
    source = Told(answer)
    advisor = Advisor(SPACE, source, seed=0, background=False)
    with caplog.at_level(logging.WARNING):
        assert [list(advisor.proposals(())) for _ in range(9)] == [[]] * 9
    assert source.questions == MOST_FAILURES
    (line,) = caplog.messages
    assert says in line
    assert "search.advisor: " in line
    assert "\n" not in line


def test_missing_parameters_are_drawn_and_proposals_last_until_the_next_answer() -> None:
    source = Told([{"optimizer": "sgd"}])
    advisor = Advisor(SPACE, source, seed=0, background=False)
    first, second = advisor.proposals(())[0], advisor.proposals(())[0]
    SPACE.check(first)
    assert first["optimizer"] == second["optimizer"] == "sgd"
    assert first != second
    source._answer = AdvisorError("away")
    assert list(advisor.proposals(())) == [second]


@pytest.mark.medium
def test_a_program_gets_the_trials_and_prints_proposals(tmp_path: Path) -> None:
    code = """
import json, sys
told = json.load(sys.stdin)
print("thinking", file=sys.stderr)
print(json.dumps([{"told": told}]))
"""
    params = {"width": 8, "depth": 2, "optimizer": "adamw"}
    answer: Any = program(tmp_path, code).answer([observation(0, params)])
    assert answer[0]["told"] == {
        "epochs": 9,
        "trials": [
            {
                "trial": 0, "params": params, "outcome": "finished", "epochs": 9,
                "values": {"val_error": pytest.approx(0.2 + 0.5 / 9), "cost_usd": 0.09},
            }
        ],
    }  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import lost_module", "'python' ended with exit status 1: ModuleNotFoundError: No module named 'lost_module'"),
        ("import os; os.kill(os.getpid(), 9)", "'python' was ended by signal 9: it printed no error"),
        ("print('I would take a width of 64.')", "it printed 'I would take a width of 64.' on its standard output"),
        ("print('[' * 100_000)", "on its standard output instead of a list in JSON"),
        ("while True: print('nonsense ' * 1000)", "'python' printed more than 1,048,576 bytes"),
        ("import time; time.sleep(1000)", "'python' took longer than 1 s"),
        ("import os, time; os.close(1); os.close(2); time.sleep(1000)", "'python' took longer than 1 s"),
        ("import subprocess; subprocess.Popen(['sleep', '1000'])", "it printed '' on its standard output"),
    ],
)
def test_a_program_that_gives_no_answer_is_ended_and_the_reason_said(tmp_path: Path, code: str, says: str) -> None:
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    with pytest.raises(AdvisorError) as said:
        program(tmp_path, code, seconds=1.0 if "1 s" in says else 60.0).answer([])
    assert says in str(said.value)
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    lost = AdvisorProgram(["./lost"], seconds=1.0, folder=tmp_path, about={}, metrics=[])
    with pytest.raises(AdvisorError, match=r"the program '\./lost' is not on this machine"):
        lost.answer([])


@pytest.mark.medium
def test_nothing_waits_for_a_program_and_it_ends_with_the_study(tmp_path, caplog):
    code = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(1000)"
    advisor = Advisor(SPACE, program(tmp_path, code, seconds=900.0), seed=0)
    assert list(advisor.proposals(())) == []  # this line would take 900 s
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    pid = int((tmp_path / "pid").read_text())
    assert psutil.pid_exists(pid)
    advisor.close()
    assert not psutil.pid_exists(pid)
    assert advisor._thread is not None
    advisor._thread.join()
    assert list(advisor.proposals(())) == []
    assert caplog.messages == []


@pytest.mark.medium
def test_a_program_ends_by_itself_after_its_seconds_if_the_study_was_killed(tmp_path: Path) -> None:
    """The launching process cannot end it any more: an alarm that it has from its start does."""
    (tmp_path / "advise.py").write_text("import time; print('up', flush=True); time.sleep(1000)", encoding="utf-8")
    code = (
        "import pathlib, sys; from studies.search.samplers.advisor import AdvisorProgram\n"
        f"AdvisorProgram(['python', 'advise.py'], seconds=1.0, folder=pathlib.Path({str(tmp_path)!r}), about={{}}, "
        "metrics=[]).answer([])"
    )
    launch = psutil.Popen([sys.executable, "-c", code], cwd=os.getcwd(), env={**os.environ, "PYTHONPATH": os.getcwd()})  # noqa: PTH109
    while not (below := launch.children(recursive=True)) or "advise.py" not in below[0].cmdline():
        time.sleep(0.005)
    launch.send_signal(signal.SIGKILL)
    launch.wait()
    gone, alive = psutil.wait_procs(below, timeout=120)
    assert (len(gone), alive) == (1, [])


def test_the_question_is_one_that_json_has(tmp_path: Path) -> None:
    """A diverged trial has no finite values, and JSON no word for them."""
    lost = observation(1, {"width": 8, "depth": 2, "optimizer": "adamw"})
    told = program(tmp_path, "")._told(
        Observation(trial_id=1, params=lost.params, outcome="finished", values=(float("nan"), 0.1))
    )
    assert json.loads(json.dumps(told, allow_nan=False))["values"] == {"val_error": None, "cost_usd": 0.1}
