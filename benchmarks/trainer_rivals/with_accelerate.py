"""Accelerate: the hand-written loop with what `prepare` returns."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from trainer_rivals import workload as w


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(w.Images(), batch_size=w.BATCH_PER_RANK, shuffle=True, num_workers=w.WORKERS)
    network = w.model()
    optimizer = torch.optim.SGD(network.parameters(), lr=w.LEARNING_RATE, momentum=w.MOMENTUM)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    criterion = nn.CrossEntropyLoss()
    clock = w.Clock()
    for _ in range(w.EPOCHS):
        clock.start()
        total = torch.zeros(())
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(network(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        clock.stop(float(total) / len(loader))
    accelerator.end_training()


if __name__ == "__main__":
    main()
