"""Your own script as a trial: it takes arguments, and calls automl three times. The script also runs alone."""

import argparse
import os

import torch
from own_task import moons
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import automl

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.03)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--epochs", type=int, default=12)
options = parser.parse_args()

rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(2, options.width), nn.ReLU(), nn.Linear(options.width, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
first = 1
if folder := automl.resume():
    state = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1
network = model
if world_size > 1:
    torch.distributed.init_process_group("gloo")
    network = DistributedDataParallel(model)

inputs, targets = moons(600, seed=0)
test_inputs, test_targets = moons(300, seed=1)
for epoch in range(first, options.epochs + 1):
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(60):
        share = batch[rank::world_size]
        optimizer.zero_grad()
        cross_entropy(network(inputs[share]), targets[share]).backward()
        optimizer.step()
    with torch.no_grad():
        error = (model(test_inputs).argmax(dim=1) != test_targets).float().mean()
    if (folder := automl.checkpoint(epoch)) and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, folder / "state.pt")
    automl.report(epoch=epoch, val_error=error)
    print(f"epoch {epoch}: error {error:.3f}")
if world_size > 1:
    torch.distributed.destroy_process_group()
