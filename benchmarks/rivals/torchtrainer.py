"""Ray Train alone: one `TorchTrainer(...).fit()` per trial on a Ray that is up; the first one from a cold start."""

from __future__ import annotations

import time

from rivals.train_function import RAY_OPTIONS, make_trainer
from rivals.workload import WORLD_SIZE, Order, Times, hand_in, read_order


def run(order: Order) -> None:
    """Start Ray and train; the first trial warms up, and its end since the process's start is the cold time."""
    import ray

    ray.init(num_cpus=WORLD_SIZE, _temp_dir=str(order.folder / "ray"), **RAY_OPTIONS)
    seconds, cold = [], 0.0
    for number in range(order.trials + 1):
        began = time.perf_counter()
        make_trainer(number, order.folder / "results", f"trial-{number}", []).fit()
        seconds.append(time.perf_counter() - began)
        cold = cold or time.time() - order.started_at
    ray.shutdown()
    hand_in(order, Times(seconds=seconds[1:], more={"cold_first_trial_seconds": cold}))


if __name__ == "__main__":
    run(read_order())
