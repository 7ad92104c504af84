"""The floor: the bare training loop in two processes whose process group stands, one trial after the other.

It builds model and data and validates each epoch, and writes nothing. It runs with two loops in turn, our trainer's
and one written by hand for this task alone; the quicker one is the floor.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rivals.workload import WORLD_SIZE, Order, Times, hand_in, read_order, trial_spec
from trainers.contract.task import Task
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress, StoreServer
from trainers.ranks.process import set_threads, use_batch_scheduling
from trainers.ranks.process_group import Group, destroy_group, form_group, warm_up

Loop = Callable[[TrialSpec, Task, int], None]


def ours(spec: TrialSpec, task: Task, rank: int) -> None:
    """Train with the product's trainer."""
    trainer = Trainer(spec, task, group=Group(rank=rank, world_size=WORLD_SIZE))
    for _ in trainer.advance(spec.training["epochs"]):  # type: ignore[arg-type]
        pass
    trainer.close()


def by_hand(spec: TrialSpec, task: Any, rank: int) -> None:
    """Train with as little code as it takes."""
    epochs, batch = int(spec.training["epochs"]), int(spec.params["batch_per_rank"])  # type: ignore[call-overload,arg-type]
    torch.manual_seed(spec.seed)
    inputs, targets = task.train_data(spec.params)
    validation = [part[rank::WORLD_SIZE] for part in task.validation_data(spec.params)]
    model = task.model(spec.params)
    network = DistributedDataParallel(model, gradient_as_bucket_view=True)
    rate, momentum, decay = (float(spec.params[key]) for key in ("learning_rate", "momentum", "weight_decay"))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=momentum, weight_decay=decay, fused=True)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        for step in torch.split(order, batch * WORLD_SIZE):
            own = step[rank::WORLD_SIZE]
            task.loss(network(inputs[own]), targets[own]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        _validate(model, task, validation)


def _validate(model: nn.Module, task: Task, validation: list[torch.Tensor]) -> None:
    with torch.no_grad():
        outputs = model(validation[0])
        rows = {"loss": task.loss(outputs, validation[1]), **task.metrics(outputs, validation[1])}
        sums = torch.stack([row.double().sum() for row in rows.values()])
    dist.all_reduce(sums)
    sums.tolist()


LOOPS: dict[str, Loop] = {"our trainer": ours, "by hand": by_hand}


def rank_main(rank: int, address: StoreAddress, trials: int, answer: Connection) -> None:
    """Take part in all trials; rank 0 answers with each loop's seconds per trial."""
    set_threads(1)
    warm_up()
    store = StoreClient(address)
    form_group(store, "floor", rank, WORLD_SIZE)
    use_batch_scheduling()
    specs = [trial_spec(number, None) for number in range(trials + 1)]
    task = load_task(specs[0].task, specs[0].task_options, specs[0].python_path)
    seconds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for spec in specs:
        for name, loop in LOOPS.items():
            began = time.perf_counter()
            loop(spec, task, rank)
            if spec.trial:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    if rank == 0:
        answer.send(seconds)
    destroy_group()


def run(order: Order) -> None:
    """Train, and hand in both loops' times."""
    store = StoreServer()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=rank_main, args=(rank, store.address, order.trials, sender), daemon=True)
        for rank in range(WORLD_SIZE)
    ]
    for process in ranks:
        process.start()
    sender.close()
    seconds = receiver.recv()
    for process in ranks:
        process.join()
    del store
    hand_in(order, Times(seconds=[], more=seconds))


if __name__ == "__main__":
    run(read_order())
