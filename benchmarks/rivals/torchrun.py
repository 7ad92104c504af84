"""torchrun: one `python -m torch.distributed.run` per trial; as a program under it, one rank of a trial."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rivals.workload import WORLD_SIZE, Order, Times, hand_in, read_order, trial_spec
from trainers.local.local_training import train_locally


def run(order: Order) -> None:
    """Run the trials, and one more first that warms the disk's cache up."""
    seconds = []
    for number in range(order.trials + 1):
        began = time.perf_counter()
        _one_trial(order, number)
        seconds.append(time.perf_counter() - began)
    hand_in(order, Times(seconds=seconds[1:], more={"first_trial_seconds": seconds[0]}))


def _one_trial(order: Order, number: int) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        # A free port and no look-up of the host's name, so that trials may follow each other at once.
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(WORLD_SIZE), "-m", "rivals.torchrun"),
        *("--trials", str(number), "--folder", str(order.folder), "--started-at", "0"),
    ]
    subprocess.run(command, check=True)


def train(order: Order) -> None:
    """Train the trial of this number, as one rank, with checkpoints at the milestones."""
    train_locally(trial_spec(order.trials, order.folder / "checkpoints"))


if __name__ == "__main__":
    given = read_order()
    train(given) if "RANK" in os.environ else run(given)
