"""Objectives as users of Optuna write them, and some that do not fit."""


def network(trial):
    """Optuna's own example asks for layers in a function of its own."""
    layers = trial.suggest_int("layers", 1, 3)
    return [trial.suggest_int(f"units_{layer}", 4, 128, log=True) for layer in range(layers)]


def objective(trial):
    units = network(trial)
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    kind = trial.suggest_categorical("kind", ["sgd", "adam"])
    beta = trial.suggest_float("beta", low=0.0, high=0.9, step=0.1) if kind == "adam" else 0.0
    error = 1.0
    for step in range(4):
        error = abs(rate - 0.1) + beta / 100 + 1 / (step + sum(units))
        trial.report(error, step)
        if trial.should_prune():
            raise RuntimeError("it never says so: a trial that is over ends")
    return error / 2


def without_reports(trial):
    return trial.suggest_float("rate", 0, 1), 3


def silent(trial):
    trial.suggest_float("rate", 0.0, 1.0)


def asks_for_more(trial):
    return trial.suggest_float("rates", 0.0, 1.0)


def asks_for_less(trial):
    return trial.suggest_float("rate", 0.0, 0.1)


def keeps_notes(trial):
    rate = trial.suggest_float("rate", 0.0, 1.0)
    trial.set_user_attr("note", "small")
    trial.set_user_attr("is_wide", True)
    trial.set_user_attr("half", rate / 2)
    trial.report(rate, 0)
    trial.should_prune()
    trial.set_user_attr("size", 3)
    assert trial.user_attrs == {"note": "small", "is_wide": True, "half": rate / 2, "size": 3}
    return rate


def asks_for_data(trial):
    return trial.storage


class TrialPruned(Exception):  # noqa: N818 - Optuna calls it so
    """Stands for Optuna's, which is known by its name."""


def prunes_at_once(trial):
    raise TrialPruned


def prunes_itself(trial):
    trial.report(trial.suggest_float("rate", 0.0, 1.0), 0)
    trial.should_prune()
    raise TrialPruned


class Hopeless(TrialPruned):
    pass


def prunes_without_asking(trial):
    trial.set_user_attr("peak_memory_bytes", -1)
    trial.report(trial.suggest_float("rate", 0.0, 1.0), 0)
    raise Hopeless


def reports_without_asking(trial):
    for step in range(3):
        trial.report(trial.suggest_float("rate", 0.0, 1.0) + step, step)
    return 0.25


def differs_by_branch(trial):
    if trial.suggest_categorical("kind", ["sgd", "adam"]) == "adam":
        return trial.suggest_float("rate", 1e-4, 1e-2, log=True)
    return trial.suggest_float("rate", 1e-2, 1.0, log=True)


def branches(trial):
    error = trial.suggest_int("layers", 1, 8, step=1, log=True) + trial.suggest_float("drop", 0, 0.5, step=0.25)
    if trial.suggest_categorical(choices=("sgd", "adam"), name="kind") == "adam":
        error += trial.suggest_float("beta", 0.5, high=0.9)
    return error


def with_options(trial):
    options = {"low": 0.0, "high": 1.0}
    return trial.suggest_float("rate", **options)


def of_old_optuna(trial):
    return trial.suggest_loguniform("rate", 1e-3, 1.0)


def single_and_odd_names(trial):
    return trial.suggest_int("one", 3, 3) + trial.suggest_float("sgd/rate", 0.0, 1.0)


def wrong_way_round(trial):
    return trial.suggest_int("width", 9, 1)


def without_choices(trial):
    return trial.suggest_categorical("kind", [])


def on_several_ranks(trial):
    model = trial.prepare(trial.suggest_float("rate", 0.0, 1.0))
    return trial.mean(model)


def without_bounds(trial):
    return trial.suggest_float("rate", float("nan"), 1.0)


def without_any_choice(trial):
    return len(trial.suggest_categorical("kind", [one for one in "ab" if one == "c"]))


def twice_with_other_ranges(trial):
    return trial.suggest_int("width", 1, 8) + trial.suggest_int("width", 9, 12)


def asks_for_ranks(trial):
    return trial.suggest_int("world_size", 1, len("ab"))


def with_a_loop(trial):
    return trial.mean(sum(trial.suggest_int(f"units_{i}", 1, 1000) for i in range(2)))


def by_rank(trial):
    return trial.suggest_int("width", 1, 100 * (trial.rank + 1))
