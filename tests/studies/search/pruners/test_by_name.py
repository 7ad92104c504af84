"""Pruners by name: options, the user's own beside the spec, and what is refused."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from studies.control.assembly import PoolSpec, assemble, has_model, setup_of
from studies.records.records import Objective
from studies.search.model.curve_model import CurveModel
from studies.search.observations import Snapshot
from studies.search.pruners.break_even import BreakEven
from studies.search.pruners.by_name import BUILT_IN, options_with_defaults
from studies.search.pruners.mo_asha import MoAsha
from studies.search.user_objects import SearchError
from studies.simulation.simulated_study import simulate
from studies.spec.study_spec import parse_spec, spec_to_mapping
from tests.support.command_line import InProcess
from tests.support.curve_tables import arrays, table, write

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
OWN = """
    from dataclasses import dataclass, field
    from typing import Literal

    from studies.search.policy import Decision, StoppingPruner


    @dataclass(frozen=True, kw_only=True)
    class Luck(StoppingPruner):
        share: float = field(default=0.5, metadata={"at_least": 0})
        rung: int = field(default=4, metadata={"at_least": 1})
        mode: Literal["odd", "even"] = "odd"

        def rungs(self, epochs):
            return (self.rung,) if self.rung < epochs else ()

        def decide(self, history, number, rung):
            stops = number % 2 == (1 if self.mode == "odd" else 0)
            return Decision(action="stop" if stops else "continue", reason=f"an {self.mode} number")


    @dataclass(frozen=True, kw_only=True)
    class Modelled(Luck):
        @classmethod
        def for_study(cls, context, **options):
            made = cls(**options)
            seen.append((context.seed, context.model() is context.model(), context.problem.epochs))
            return made


    seen = []


    class Unfinished:
        def rungs(self, epochs):
            return ()


    class Broken(StoppingPruner):
        def __init__(self):
            raise RuntimeError("no luck")


    class Backwards(StoppingPruner):
        def rungs(self, epochs):
            return (4, 2)

        def decide(self, history, number, rung):
            raise AssertionError
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's module and a table, in which commands are run."""
    (tmp_path / "own_pruners.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_pruners", raising=False)
    return tmp_path


def spec(pruner: Any, sampler: str = "random") -> Any:
    mapping = {"task": "digits", "space": {"width": {"type": "int", "low": 8, "high": 64}}, "training": {"epochs": 12},
               "search": {"sampler": sampler, "pruner": pruner, "seed": 7}}  # fmt: skip
    return parse_spec(mapping)


MODEL = CurveModel
POOL = PoolSpec(device="cpu", slots=2, usd_per_slot_hour=1.0)


# ---------------------------------------------------------------------- options


def test_the_fields_of_a_dataclass_are_its_options() -> None:
    assert options_with_defaults("mo_asha", {"eta": 4}) == {"variant": "stopping", "grace": 3, "eta": 4}
    assert options_with_defaults("none", {}) == options_with_defaults("break_even", {}) == {}
    chosen = assemble(spec({"name": "mo_asha", "grace": 2, "variant": "promotion"}), POOL).policy.pruner
    assert chosen == MoAsha(variant="promotion", grace=2, eta=3)


@pytest.mark.parametrize(
    ("name", "options", "option", "says"),
    [
        ("mo_asha", {"etta": 3}, "etta", "allowed: variant, grace, eta with the pruner mo_asha; did you mean 'eta'?"),
        ("none", {"eta": 3}, "eta", "allowed: no option with the pruner none; mo_asha has it"),
        ("break_even", {"grace": 3}, "grace", "mo_asha and median have it"),
        ("mo_asha", {"eta": 1}, "eta", "found 1, allowed: a whole number of at least 2"),
        ("mo_asha", {"eta": 2.5}, "eta", "found 2.5, allowed: a whole number of at least 2"),
        ("mo_asha", {"eta": True}, "eta", "found true, allowed: a whole number of at least 2"),
        ("median", {"combine": "al"}, "combine", "allowed: joint, any, all, primary; did you mean 'all'?"),
        ("own_pruners:Luck", {"share": -1}, "share", "found -1, allowed: a finite number of at least 0"),
        ("own_pruners:Luck", {"share": float("nan")}, "share", "found nan, allowed: a finite number"),
        ("own_pruners:Luck", {"mode": "0dd"}, "mode", "allowed: odd, even"),
    ],
)
def test_an_option_that_a_pruner_does_not_take_is_refused(beside, name, options, option, says):
    with pytest.raises(SearchError) as refused:
        options_with_defaults(name, options)
    assert refused.value.path == ("pruner", option)
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"search.pruner.{option}: found ")


def test_an_own_pruners_options_are_stored_as_given(beside: Path) -> None:
    own = spec({"name": "own_pruners:Luck", "rung": 5})
    assert spec_to_mapping(own)["search"]["pruner"] == {"name": "own_pruners:Luck", "rung": 5}
    assert parse_spec(spec_to_mapping(own)) == own
    assembled = assemble(own, POOL)
    assert assembled.policy.pruner.rungs(12) == (5,)
    assert setup_of(own, POOL, assembled.policy, beside, None).milestones[-1] == 12


# ---------------------------------------------------------------------- the model


def built_models(monkeypatch: pytest.MonkeyPatch) -> list[CurveModel]:
    """All models of learning curves that are built from now on."""
    built: list[CurveModel] = []
    begin = MODEL.__init__

    def noted(self: MODEL, *given: Any) -> None:
        built.append(self)
        begin(self, *given)

    monkeypatch.setattr(MODEL, "__init__", noted)
    return built


@pytest.mark.parametrize(
    ("sampler", "pruner", "models"),
    [
        ("random", "none", 0),
        ("tpe", "mo_asha", 0),
        ("random", "break_even", 1),
        ("cokriging", "median", 2),  # the suggester's own, for its thread
        ("auto", "auto", 2),
        ("random", "own_pruners:Luck", 0),
        ("random", "own_pruners:Modelled", 1),
    ],
)
def test_a_model_is_built_only_for_those_that_look_at_it(beside, sampler, pruner, models, monkeypatch):
    built = built_models(monkeypatch)
    chosen = spec(pruner, sampler)
    assembled = assemble(chosen, POOL)
    assert len(built) == models
    assert has_model(chosen.search) == (models > 0)
    assert isinstance(assembled.policy.pruner, BreakEven) == (pruner in {"break_even", "auto"})


def test_a_pruner_may_ask_for_the_study(beside: Path) -> None:
    import own_pruners  # type: ignore[import-not-found]

    assembled = assemble(spec({"name": "own_pruners:Modelled", "rung": 6}), POOL)
    assert own_pruners.seen == [(7, True, 12)]
    assert assembled.policy.pruner.rungs(12) == (6,)


@pytest.mark.parametrize(
    "pruner",
    [*BUILT_IN, {"name": "mo_asha", "grace": 10}, {"name": "median", "grace": 4}, "own_pruners:Luck",
     {"name": "own_pruners:Modelled", "rung": 8}],
    ids=str,
)  # fmt: skip
def test_the_search_counts_the_models_that_are_kept(beside: Path, pruner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of models that nobody can take would hide what others are worth."""
    built = built_models(monkeypatch)
    given = spec(pruner, "cokriging")
    own = given.model_copy(update={"training": given.training.model_copy(update={"epochs": 50})})
    setup = setup_of(own, POOL, assemble(own, POOL).policy, beside, None)
    at = {epoch: (1.0 / epoch, 0.01 * epoch) for epoch in sorted(setup.looked_at)}
    trial = Snapshot(number=0, params={"width": 32}, state="ended", epochs=50, at=at, usd_per_epoch=0.01, paid_usd=0.5)
    assert len(built) == 2
    for model in built:
        model.learn([trial], refit=False)
        assert {round(100 * dollars) for _, dollars in model.archive.tolist()} == set(setup.milestones)


# ---------------------------------------------------------------------- whole studies


def test_a_study_runs_with_a_users_pruner(beside: Path) -> None:
    study = simulate(
        table(beside), objectives=OBJECTIVES, slots=2, budget_full_trials=6, sampler="random",
        pruner={"name": "own_pruners:Luck", "rung": 3},
    )  # fmt: skip
    decided = {t.number: (one.epoch, one.action) for t in study.record.started for one in t.decisions}
    assert len(decided) > 4
    assert all(epoch == 3 and (action == "stop") == (n or 0) % 2 for n, (epoch, action) in decided.items())
    assert {t.state for t in study.record.started if (t.number or 0) % 2 and t.decisions} == {"pruned"}


@pytest.fixture
def commands(beside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Run in the folder of the module, which is not on Python's path."""
    monkeypatch.setattr("sys.path", [one for one in sys.path if one not in {str(beside), ""}])
    return InProcess(beside, capsys, monkeypatch)


def test_the_command_simulates_with_a_pruner_beside_it(commands: InProcess) -> None:
    code, out, err = commands.run(
        "simulate", str(write(commands.folder, arrays())), "--objective", "val_error:min", "--pruner",
        "own_pruners:Luck", "--sampler", "random", "--budget-full-trials", "4", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert '"pruned"' in out


@pytest.mark.parametrize(
    ("pruner", "says"),
    [
        ("nowhere:Pruner", "search.pruner: 'nowhere:Pruner' cannot be used (ModuleNotFoundError"),
        ("own_pruners:Missing", "search.pruner: 'own_pruners:Missing' cannot be used (AttributeError"),
        ("own_pruners:Unfinished", "returns a Unfinished without decide, thaw, prepare, worth_least. Add them"),
        ("own_pruners:Broken", "'own_pruners:Broken' cannot be used (RuntimeError: no luck)"),
        ("{name: 'own_pruners:Luck', shar: 1}", "search.pruner.shar: found the unknown key 'shar', allowed: share"),
        ("{name: 'own_pruners:Luck', rung: 0}", "search.pruner.rung: found 0, allowed: a whole number of at least 1"),
    ],
)
def test_what_is_no_pruner_is_refused_in_one_line(commands: InProcess, pruner: str, says: str) -> None:
    words = ("simulate", str(write(commands.folder, arrays())), "--objective", "val_error:min", "--pruner", pruner)
    assert says in commands.refused(*words)


def test_a_launch_takes_the_pruner_beside_its_spec_and_refuses_odd_rungs(commands: InProcess) -> None:
    """A dry run checks all that a launch does."""
    (commands.folder / "s.yaml").write_text(
        "task: digits\ntraining: {epochs: 9}\nresources: {slots: 1}\n"
        "search: {sampler: random, pruner: {name: 'own_pruners:Luck', rung: 5}}\n"
    )
    words = ("launch", "s.yaml", "--dry-run")
    code, out, err = commands.run(*words)
    assert code == 0, err
    assert "training    9 epochs, rungs 5\n" in out
    rungs = "search.pruner: 'own_pruners:Backwards' returns the rungs (4, 2). They must be whole numbers from 1 to 8"
    assert rungs in commands.refused(*words, "--set", "search.pruner=own_pruners:Backwards")
    whole = "search.pruner.rung: found 'x', allowed: a whole number of at least 1"
    assert whole in commands.refused(*words, "--set", "search.pruner.rung=x")
