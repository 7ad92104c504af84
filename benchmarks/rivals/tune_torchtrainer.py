"""Ray's documented way to search over distributed trainings: a Tune function that calls `TorchTrainer(...).fit()`.

https://docs.ray.io/en/latest/train/user-guides/hyperparameter-optimization.html
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rivals.train_function import RAY_OPTIONS, make_trainer
from rivals.workload import WORLD_SIZE, Order, Times, gaps, hand_in, read_order, study_spec

DRIVER_CPUS = 0.01
"""CPUs reserved for the Tune function, which only waits; Ray's guide gives it a fraction too."""


def train_driver(config: dict[str, Any]) -> None:
    """Run one trial's distributed training, as Ray's guide has it."""
    import ray.tune
    from ray.tune.integration.ray_train import TuneReportCallback

    name = f"train-{ray.tune.get_context().get_trial_id()}"
    make_trainer(config["number"], Path(config["storage"]), name, [TuneReportCallback()]).fit()


def run(order: Order) -> None:
    """Search; seconds per trial are the times between the ends of consecutive trials, so the first one warms up."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    ray.init(num_cpus=WORLD_SIZE + 1, _temp_dir=str(order.folder / "ray"), **RAY_OPTIONS)
    spec, storage = study_spec(), order.folder / "results"
    options = spec.search.pruner.options
    # One epoch more than there is: at max_t ASHA ends a trial by force, which would spare it its orderly end.
    asha = ASHAScheduler(grace_period=options["grace"], reduction_factor=options["eta"], max_t=spec.training.epochs + 1)
    watch = _watch()
    tuner = tune.Tuner(
        tune.with_resources(train_driver, {"CPU": DRIVER_CPUS}),
        param_space={"number": tune.grid_search(list(range(order.trials + 1))), "storage": str(storage)},
        tune_config=tune.TuneConfig(metric="age_seconds", mode="min", scheduler=asha, max_concurrent_trials=1),
        run_config=tune.RunConfig(name="tune", storage_path=str(storage), callbacks=[watch]),
    )
    results = tuner.fit()
    ray.shutdown()
    epochs = [one.metrics["training_iteration"] for one in results]  # type: ignore[attr-defined] # it has __getitem__ and __len__
    if results.errors or set(epochs) != {spec.training.epochs}:
        raise SystemExit(f"trials were cut short or failed: {epochs} epochs, {results.errors}")
    cold = watch.ends[0] - order.started_at
    hand_in(order, Times(seconds=gaps(watch.ends), more={"cold_first_trial_seconds": cold}))


def _watch() -> Any:
    from ray import tune

    class Watch(tune.Callback):
        """Notes when trials end."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_trial_complete(self, *_arguments: Any, **_more: Any) -> None:
            self.ends.append(time.time())

    return Watch()


if __name__ == "__main__":
    run(read_order())
