"""Warm starts: reading earlier studies, what is refused, what is stored, and whether they help or harm."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml

from automl.launching.earlier_studies import trials_of_record, with_earlier
from automl.launching.launch_or_resume import find_or_create
from automl.launching.prepared_study import prepare
from automl.launching.spec_reading import read_spec
from automl.stored.open_store import stored_form
from search_spaces.space import Space
from studies.control.session import NO_LEASE, Session
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import Constraint, Objective
from studies.search.model.curve_model import CurveModel
from studies.search.model.encoding import identity
from studies.search.model.problem import Problem
from studies.search.model.transfer import EarlierStudy, EarlierTrial, Transfer, TransferMean, fitting, is_alike, thinned
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.model_suggester import ModelSuggester
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.search.samplers.suggester import FirstTrials, Suggester
from studies.spec.study_spec import differences, parse_spec
from studies.storage.reading.reader import load_study
from studies.storage.schema.tables import VERSION_TABLE
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS, InProcess
from tests.support.simulated_study import SPACE, SimulatedStudy, smooth_curve

ERROR, COST = Objective(metric="val_error"), Objective(metric="cost_usd")
TWO = (ERROR, COST)


def error_of(rate: float) -> float:
    return 0.1 + 0.1 * (np.log10(rate) + 2.0) ** 2


def study(*, count: int = 30, turned: bool = False, name: str = "before") -> EarlierStudy:
    """Trials with errors that are smallest at a learning rate of 0.01, or largest there; each call makes the same."""
    rng = np.random.default_rng(0)
    rates, widths = 10 ** rng.uniform(-4, 0, count), rng.integers(8, 257, count)
    errors = [1.0 - error_of(r) if turned else error_of(r) for r in rates]
    trials = tuple(
        EarlierTrial(params={"learning_rate": float(r), "width": int(w)}, values=(e, 0.01 * w), usd_per_epoch=1e-4 * w)
        for r, w, e in zip(rates, widths, errors, strict=True)
    )
    return EarlierStudy(name=name, trials=trials)


SMALL = Constraint(metric="model_parameters", max=1600.0)


def with_sizes(one: EarlierStudy) -> EarlierStudy:
    """The same with 100 parameters per unit of width, so that a width of at most 16 keeps `SMALL`."""
    trials = [replace(t, bounded={"model_parameters": 100.0 * float(t.params["width"])}) for t in one.trials]  # type: ignore[arg-type]
    return replace(one, trials=tuple(trials))


TREE = Space.from_dict(
    {
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
        "depth": {"type": "int", "low": 1, "high": 4},
    }
)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"optimizer": "sgd", "momentum": 0.5, "depth": 2, "o": 1}, {"optimizer": "sgd", "momentum": 0.5, "depth": 2}),
        ({"optimizer": "adamw", "momentum": 0.5, "depth": 2}, {"optimizer": "adamw", "depth": 2}),
        ({"optimizer": "sgd", "depth": 2}, {"optimizer": "sgd", "depth": 2}),
        ({"optimizer": "sgd", "momentum": 0, "depth": 2}, {"optimizer": "sgd", "momentum": 0.0, "depth": 2}),
        ({"optimizer": "sgd", "momentum": 0.95, "depth": 2}, None),
        ({"optimizer": "lion", "depth": 2}, None),
        ({"optimizer": "adamw"}, None),
        ({"optimizer": "adamw", "depth": 2.5}, None),
    ],
)  # fmt: skip
def test_parameters_are_kept_as_the_space_has_them_or_the_trial_is_left_out(params, kept):
    assert fitting(TREE, params) == kept


def test_of_many_trials_the_best_half_stays() -> None:
    many = study(count=400).trials
    some = thinned(many, TWO)
    assert len(some) == 200
    assert min(one.values for one in many) in [one.values for one in some]


def test_of_many_trials_those_that_kept_the_constraints_stay() -> None:
    many = with_sizes(study(count=400)).trials
    small = [one for one in many if one.bounded["model_parameters"] <= 1600]
    assert 4 < len(small) < 100
    assert set(map(str, small)) <= set(map(str, thinned(many, TWO, (SMALL,))))


def test_a_stored_copy_is_equal_and_one_from_before_bounded_metrics_were_taken_can_be_read() -> None:
    for one in (study(), with_sizes(study())):
        assert EarlierStudy.from_plain(json.loads(json.dumps(one.to_plain()))) == one
    form = study().to_plain()
    for trial in form["trials"]:
        del trial["bounded"]
    assert not any(one.bounded for one in EarlierStudy.from_plain(form).trials)


def problem(*earlier: EarlierStudy) -> Problem:
    return Problem(
        space=SPACE, objectives=TWO, epochs=9, milestones=(2, 4, 9), usd_per_slot_hour=1.0,
        transfer=Transfer(SPACE, TWO, earlier) if earlier else None,
    )  # fmt: skip


def seen(count: int, *, turned: bool = False) -> list[Snapshot]:
    trials = []
    for i, rate in enumerate(10 ** np.random.default_rng(1).uniform(-4, 0, count)):
        end = 1.0 - error_of(rate) if turned else error_of(rate)
        at = {epoch: (2.0 * end + 0.3 / epoch, 0.01 * epoch) for epoch in (1, 2, 4, 9)}
        params = {"learning_rate": float(rate), "width": 32}
        trials.append(
            Snapshot(number=i, params=params, state="ended", epochs=9, at=at, usd_per_epoch=0.01, paid_usd=0.09)
        )
    return trials


def forecast_at(model: CurveModel, *rates: float) -> list[float]:
    some = model.untried(model.features([{"learning_rate": rate, "width": 32} for rate in rates]))
    return [float(v) for v in model.forecast(some).curves[0].mean[:, -1]]


@pytest.mark.medium
def test_before_anything_was_seen_an_earlier_study_tells_good_from_bad() -> None:
    model = CurveModel(problem(study()))
    model.learn([], refit=True)
    good, bad = forecast_at(model, 1e-2, 1.0)
    assert good < bad
    alone = CurveModel(problem())
    alone.learn([], refit=True)
    assert len(set(forecast_at(alone, 1e-2, 1.0))) == 1


def test_after_few_trials_forecasts_are_better_with_a_similar_study_and_no_worse_with_a_reversed_one() -> None:
    rates = tuple(10 ** np.linspace(-4, 0, 40))
    truth = np.log([2.0 * error_of(rate) + 0.3 / 9 for rate in rates])

    def misses(*earlier: EarlierStudy) -> float:
        model = CurveModel(problem(*earlier))
        model.learn(seen(4), refit=True)
        return float(np.corrcoef(forecast_at(model, *rates), truth)[0, 1])

    alone, similar, reversed_ = misses(), misses(study()), misses(study(turned=True))
    assert similar > max(alone, 0.9)
    assert reversed_ > alone - 0.1
    assert misses(study(), study(turned=True, name="other")) > alone - 0.1


def test_a_study_that_orders_trials_the_wrong_way_round_is_not_listened_to() -> None:
    ends = np.linspace(-1, 1, 8)[:, None]
    assert is_alike(ends, np.arange(8.0)).tolist() == [True]
    assert is_alike(ends, -np.arange(8.0)).tolist() == [False]
    assert is_alike(ends[:5], -np.arange(5.0)).tolist() == [True], "five trials are too few to judge"
    level = TransferMean(Transfer(SPACE, TWO, [study(turned=True)]), 0)
    x = CurveModel(problem()).features([trial.params for trial in seen(8)]).x
    level.judge(x, np.array([trial.at[9][0] for trial in seen(8)]))
    assert not level.features(x)[:, 1:].any()


def test_earlier_prices_are_a_hint() -> None:
    def spread(*earlier: EarlierStudy) -> float:
        model = CurveModel(problem(*earlier))
        trials = [
            Snapshot(
                 number=i, params={"learning_rate": 0.1, "width": w}, state="ended", epochs=2, usd_per_epoch=1e-3 * w,
                 paid_usd=2e-3 * w, at={1: (0.5, 0.1), 2: (0.4, 0.2)}) for i, w in enumerate((16, 40, 100, 33))
        ]  # fmt: skip
        model.learn(trials, refit=True)
        some = model.untried(model.features([{"learning_rate": 1e-3, "width": w} for w in (8, 64, 256)]))
        return float(np.abs(some.log_usd - np.log([8e-3, 64e-3, 256e-3])).mean())

    assert spread(study()) < spread()


def widths_of_starters(*earlier: EarlierStudy, constraints: tuple[Constraint, ...] = (SMALL,)) -> list[int]:
    transfer = Transfer(SPACE, TWO, earlier, constraints)
    return [int(params["width"]) for params in transfer.starters(2)]  # type: ignore[arg-type]


def of_widths(*widths: int, name: str = "before") -> EarlierStudy:
    """The wider, the better."""
    trials = [
        EarlierTrial(params={"learning_rate": 0.01, "width": width}, values=(1.0 / width, 0.01)) for width in widths
    ]
    return EarlierStudy(name=name, trials=tuple(trials))


def test_what_kept_the_constraints_starts_before_what_was_better() -> None:
    earlier = with_sizes(of_widths(8, 12, 16, 17, 200))
    assert widths_of_starters(earlier) == [16, 12]
    assert widths_of_starters(earlier, constraints=()) == [200, 17]
    tight = Constraint(metric="val_error", max=0.03)  # an objective can be bounded as well
    assert widths_of_starters(earlier, constraints=(tight, SMALL)) == [17, 16], "what violates least, if all do"


def test_what_is_not_known_to_violate_a_constraint_counts_as_feasible() -> None:
    assert widths_of_starters(of_widths(8, 200, 100)) == [200, 100]
    large, unknown = with_sizes(of_widths(100, 200)), of_widths(90, 80, name="another")
    assert widths_of_starters(large, unknown) == [90, 80]


def asker(
    sampler: str, *earlier: EarlierStudy, space: Space = SPACE, constraints: tuple[Constraint, ...] = ()
) -> OptunaSuggester:
    return OptunaSuggester(
        space=space, directions=("minimize", "minimize"), sampler=sampler, seed=0, study_attributes={},
        transfer=Transfer(space, TWO, earlier, constraints),
    )  # fmt: skip


def history(count: int, *, turned: bool = False) -> tuple[Observation, ...]:
    return tuple(
        Observation(trial_id=t.number + 1, params=t.params, outcome="finished", values=t.at[9], snapshot=t)
        for t in seen(count, turned=turned)
    )


@pytest.mark.medium
@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp"])
def test_every_sampler_takes_earlier_trials(sampler: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        first = asker(sampler, study(count=60)).suggest(0, ())
        again = asker(sampler, study(count=60)).suggest(12, history(12))
    SPACE.check(dict(first.params))
    SPACE.check(dict(again.params))
    if sampler == "nsga2":
        assert first.trial_attributes["NSGAIISampler:generation"] == 1, "earlier trials are generation 0"


def test_samplers_hear_by_how_much_earlier_trials_violate_each_bound() -> None:
    both = (SMALL, Constraint(metric="latency_ms", max=5.0))
    before = asker("tpe", with_sizes(of_widths(8, 16, 32)), constraints=both)._study_with(()).trials
    assert [trial.constraints for trial in before] == [
        {"model_parameters max": excess, "latency_ms max": 0.0} for excess in (-0.5, 0.0, 1.0)
    ]
    assert not any(trial.constraints for trial in asker("tpe", of_widths(8, 16))._study_with(()).trials)


def test_tpe_starts_where_earlier_trials_kept_the_constraints() -> None:
    earlier = with_sizes(of_widths(*range(10, 250, 4)))  # the wider, the better

    def small(*constraints: Constraint) -> int:
        first = asker("tpe", earlier, constraints=constraints)
        return sum(int(first.suggest(n, ()).params["width"]) <= 60 for n in range(8))  # type: ignore[arg-type]

    assert small() <= 2
    assert small(Constraint(metric="model_parameters", max=6000.0)) >= 6


def test_tpe_starts_near_what_was_good() -> None:
    def rates(*earlier: EarlierStudy) -> list[float]:
        made = [asker("tpe", *earlier).suggest(n, ()).params["learning_rate"] for n in range(12)]
        return [abs(float(np.log10(rate)) + 2.0) for rate in made]  # type: ignore[arg-type]

    assert np.mean(rates(study(count=60))) < 0.7 * np.mean(rates())


def test_trials_of_an_unlike_study_stay_in_their_places_and_teach_nothing() -> None:
    told = asker("tpe", study(turned=True))._study_with(history(8)).trials
    assert len(told) == 38
    assert {trial.state for trial in told[:30]} == {optuna.trial.TrialState.FAIL}
    alike = asker("tpe", study())._study_with(history(8)).trials
    assert {trial.state for trial in alike[:30]} == {optuna.trial.TrialState.COMPLETE}
    theirs, ours = ([trial.values[0] for trial in some] for some in (alike[:30], alike[30:]))
    assert np.median(theirs) == pytest.approx(np.median(ours), rel=0.1), "an easier task's trials are not all better"


def test_trials_of_our_own_study_are_taken_as_measured_or_as_their_curves_say(tmp_path: Path) -> None:
    """Poor ones whose curves say little as well: without them nobody knows where not to look."""
    simulated = SimulatedStudy(tmp_path, sampler="random", curve=sized_curve)
    simulated.run(Limits(trials=30))
    started = simulated.record().started
    wanted = [Constraint(metric=metric, max=1.0) for metric in ("model_parameters", "wall_seconds", "latency_ms")]
    trials = trials_of_record(simulated.record(), TWO, wanted)
    by_params = {json.dumps(dict(one.params)): one for one in trials}
    assert len(trials) > 15
    assert all(one.usd_per_epoch for one in trials)
    ahead = []
    for trial in started:
        one, last = by_params.get(json.dumps(dict(trial.params))), trial.epochs[-1].metrics
        if one is None:
            assert len(trial.epochs) < 3
            continue
        if trial.state == "complete":
            assert one.values == tuple(last[objective.metric] for objective in TWO)
        else:
            assert one.values[0] < last["val_error"], "a curve goes on to fall"
        assert set(one.bounded) == {"model_parameters", "wall_seconds"}, "latencies were not measured"
        assert one.bounded["model_parameters"] == 100.0 * float(trial.params["width"])  # type: ignore[arg-type]
        ahead.append(one.bounded["wall_seconds"] / last["wall_seconds"])
        assert ahead[-1] == pytest.approx(27 / trial.epochs[-1].epoch)
    assert min(ahead) == 1.0
    assert max(ahead) > 2.0, "there are some that were cut short"


def sized_curve(params: Any, world_size: int) -> Curve:
    smooth = smooth_curve(params, world_size)
    size = {"model_parameters": 100.0 * float(params["width"])}
    return replace(smooth, metrics=tuple({**metrics, **size} for metrics in smooth.metrics))


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    spec = {**DIGITS, "space": {"learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    return InProcess(tmp_path, capsys, monkeypatch)


DRY = ("launch", "s.yaml", "--dry-run")


def optuna_study(
    url: str, *, names: list[str] | None = None, objectives: int = 2, count: int = 9, attribute: str = "notes"
) -> None:
    made = optuna.create_study(study_name="old", storage=url, directions=["minimize"] * objectives)
    if names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            made.set_metric_names(names)
    rate = optuna.distributions.FloatDistribution(1e-5, 1.0, log=True)
    for i in range(count):
        params = {"learning_rate": 10.0 ** -(i / 2)}
        values = [float(j + i) for j in range(objectives)]
        made.add_trial(
            optuna.trial.create_trial(
                params=params, distributions={"learning_rate": rate}, values=values, user_attrs={attribute: i}
            )
        )
    made._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_a_dry_run_says_what_is_taken_of_an_optuna_study(here: InProcess) -> None:
    optuna_study("sqlite:///other.db", names=["cost_usd", "val_error"])
    before = (here.folder / "other.db").read_bytes()
    code, out, _ = here.run(*DRY, "--from-study", "sqlite:///other.db#old")
    assert code == 0
    assert "learns from sqlite:///other.db#old: 9 trials taken, 0 left out" in out
    code, out, _ = here.run(*DRY, "--set", "search.from_studies=['sqlite:///other.db#old']", "--json")
    assert json.loads(out)["earlier_studies"][0].startswith("sqlite:///other.db#old: 9 trials")
    assert (here.folder / "other.db").read_bytes() == before, "somebody else's file stays as it is"
    assert not (here.folder / "automl.db").exists()


@pytest.mark.parametrize("place", ["objective", "user attribute", "nowhere"])
def test_bounded_metrics_of_an_optuna_study_are_its_objectives_or_user_attributes(here: InProcess, place: str) -> None:
    """The first trials were the best, and the loss rises from 0; a rate of 0.01 has 4."""
    names = {"objective": ["val_error", "cost_usd", "val_loss"]}.get(place, ["val_error", "cost_usd"])
    attribute = "val_loss" if place == "user attribute" else "notes"
    optuna_study("sqlite:///other.db", names=names, objectives=len(names), attribute=attribute)
    search = "search={sampler: cokriging, from_studies: ['sqlite:///other.db#old']}"
    bound = {"objective": 6, "user attribute": 4, "nowhere": 4}[place]
    code, out, err = here.run(
        *DRY, "--set", search, "--set", f"constraints=[{{metric: val_loss, min: {bound}}}]", "--json"
    )
    assert code == 0, err
    first = [params["learning_rate"] for params in json.loads(out)["first_params"][:2]]
    assert first == pytest.approx([1.0, 10**-0.5] if place == "nowhere" else [1e-2, 10**-2.5])


@pytest.mark.medium
def test_objectives_are_matched_by_name_or_by_place(here: InProcess) -> None:
    optuna_study("sqlite:///named.db", names=["loss", "val_error"])
    said = here.refused(*DRY, "--from-study", "sqlite:///named.db#old")
    assert "search.from_studies" in said
    assert "a study with the objective cost_usd; this study has loss, val_error" in said
    optuna_study("sqlite:///nameless.db")
    assert here.run(*DRY, "--from-study", "sqlite:///nameless.db#old")[0] == 0
    optuna_study("sqlite:///three.db", objectives=3)
    said = here.refused(*DRY, "--from-study", "sqlite:///three.db#old")
    assert "a study with 2 objectives, or metric names; this study has 3 without names" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody", "a study that exists (there is none yet)"),
        ("sqlite:///missing.db#old", "a study that exists (there is no file "),
        ("../old.db#old", "(a study of another store is URL#NAME, such as sqlite:///../old.db#old)"),
        ("sqlite:///missing.db", "allowed: a URL that ends in #NAME"),
        ("sqlite:///missing.db#", "allowed: a URL that ends in #NAME"),
        ("mysql://u:secret@host/db#old", "allowed: sqlite, postgresql"),
        ("sqlite:///s.yaml#old", "cannot be opened"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(here: InProcess, name: str, says: str) -> None:
    for options in ([], ["--dry-run"]):
        said = here.refused("launch", "s.yaml", *options, "--from-study", name)
        assert says in said
        assert "secret" not in said


def test_the_same_study_twice_is_refused_and_a_wrong_name_gets_the_nearest_one(here: InProcess) -> None:
    assert "found 'a' twice" in here.refused(*DRY, "--from-study", "a", "--from-study", "a")
    optuna_study("sqlite:///other.db")
    assert "(old). Did you mean 'old'?" in here.refused(*DRY, "--from-study", "sqlite:///other.db#odl")


def test_somebody_elses_older_store_is_not_brought_up_to_date(here: InProcess) -> None:
    """A colleague's program may still be the older one."""
    Store("sqlite:///other.db").close()
    with closing(sqlite3.connect("other.db")) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0001'")
        connection.commit()
    before = (here.folder / "other.db").read_bytes()
    said = here.refused(*DRY, "--from-study", "sqlite:///other.db#old")
    assert "allowed: a store of this version. To migrate it, run `automl list --store sqlite:///" in said
    assert (here.folder / "other.db").read_bytes() == before


def test_what_was_taken_is_stored_with_the_study_and_is_none_of_its_trials(here: InProcess) -> None:
    """The other store may be gone by the time the study goes on."""
    optuna_study("sqlite:///other.db", names=["cost_usd", "val_error"])
    spec = read_spec("s.yaml", ["search.from_studies=['sqlite:///other.db#old']"])
    prepared = with_earlier(prepare(spec, source="s.yaml", base_folder=here.folder))
    store = Store(prepared.spec.store)
    row = find_or_create(store, prepared)
    (here.folder / "other.db").unlink()
    again = with_earlier(prepare(spec, source="s.yaml", base_folder=here.folder))
    assert again.earlier == prepared.earlier
    assert len(again.earlier[0].trials) == 9
    assert find_or_create(store, again).id == row.id, "an equal spec goes on with it"
    record = load_study(store, "small")
    assert record.trials == ()
    assert record.cost_nano_usd == 0
    session = Session(
        store=store, row=row, spec=prepared.spec, pool_spec=prepared.place,
        pool=SimulatedPool(smooth_curve),
        on_commit=lambda _: None, on_stand_by=lambda _: None,
    )  # fmt: skip
    made = session._machine(NO_LEASE, 0.0)
    assert made is not None
    _, suggester = made
    assert isinstance(suggester, OptunaSuggester)
    assert suggester._transfer.studies == again.earlier


def test_a_password_in_a_url_is_not_stored() -> None:
    spec = parse_spec({**DIGITS, "search": {"from_studies": ["postgresql://me:secret@host/db#old"]}})
    form = stored_form(spec)
    assert "secret" not in json.dumps(form)
    assert differences(parse_spec(form), spec) == [], "the spec with its password is still the same"


def test_a_study_of_the_same_store_is_found_by_its_name(here: InProcess) -> None:
    simulated = SimulatedStudy(here.folder, sampler="random")
    simulated.run(Limits(trials=12))
    url = str(simulated.store.engine.url)
    arguments = ("--store", url, "--from-study", "simulated")
    code, out, err = here.run(*DRY, *arguments)
    assert code == 0, err
    assert "learns from simulated: " in out
    said = here.refused(*DRY, *arguments, "--set", "objectives=[{metric: val_loss}]")
    assert "studies that measured val_loss; simulated measured " in said


def first_suggestions(named: Sequence[Mapping[str, Any]], enqueued: Sequence[Mapping[str, Any]] = ()) -> list[Any]:
    """Parameters of the first five trials, those enqueued first; each is running when the next one is asked for."""
    sampler: Suggester = ModelSuggester(CurveModel(problem(study())), seed=3)
    sampler = FirstTrials(named, space=SPACE, seed=3, sampler=sampler) if named else sampler
    history: tuple[Observation, ...] = ()
    for number in range(5):
        params = enqueued[number] if number < len(enqueued) else sampler.suggest(number, history).params
        snapshot = Snapshot(number=number, params=params, state="running")
        history += (Observation(trial_id=number, params=params, outcome="running", snapshot=snapshot),)
    return [dict(one.params) for one in history]


def test_what_was_good_before_is_tried_behind_named_first_trials_and_baselines() -> None:
    best, second = Transfer(SPACE, TWO, (study(),)).starters(2)
    usual, other = {"learning_rate": 0.9, "width": 9}, {"learning_rate": 0.8, "width": 9}
    assert first_suggestions([])[:2] == [best, second]
    known = [dict(one.params) for one in study().trials]
    assert not [one for one in first_suggestions([])[2:] if one in known], "two of the first trials, no more"
    assert first_suggestions([usual])[:3] == [usual, best, second]
    assert first_suggestions([usual, other])[:4] == [usual, other, best, second]
    assert first_suggestions([usual], [other])[:4] == [other, usual, best, second]


def test_what_was_good_before_is_not_trained_again_where_a_trial_has_it() -> None:
    best, second = Transfer(SPACE, TWO, (study(),)).starters(2)
    usual = {"learning_rate": 0.9, "width": 9}
    for named, enqueued in (([best], []), ([usual], [best]), ([second], []), ([best, second], [])):
        found = first_suggestions(named, enqueued)
        assert best in found
        assert second in found
        assert len({identity(one) for one in found}) == 5
