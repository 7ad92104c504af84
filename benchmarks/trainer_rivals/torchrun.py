"""A DDP loop written by hand, as torch's tutorial has it, under torchrun."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer_rivals import workload as w


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = w.Images()
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=w.BATCH_PER_RANK, sampler=sampler, num_workers=w.WORKERS)
    network = DistributedDataParallel(w.model())
    optimizer = torch.optim.SGD(network.parameters(), lr=w.LEARNING_RATE, momentum=w.MOMENTUM)
    criterion = nn.CrossEntropyLoss()
    clock = w.Clock()
    for epoch in range(w.EPOCHS):
        clock.start()
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(network(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        clock.stop(float(total) / len(loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
