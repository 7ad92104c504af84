"""The model as a command of its own: a script with DDP by hand, which calls automl three times."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import automl
from same_model_parts import workload


def main() -> None:
    """Train one trial as one of its ranks."""
    params, epochs = automl.params(), int(os.environ["AUTOML_EPOCHS"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(int(os.environ["AUTOML_SEED"]))
    net = workload.network(params["width"])
    rate = float(os.environ["AUTOML_LEARNING_RATE"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    done = 0
    if folder := automl.resume():
        state = torch.load(folder / "state.pt", weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = json.loads((folder / "epoch.json").read_text())
    model = DistributedDataParallel(net)
    training, (held_inputs, held_targets) = workload.datasets()[0], workload.images()[1]
    sampler: DistributedSampler[object] = DistributedSampler(training, world_size, rank)
    batches = DataLoader(training, batch_size=params["batch_per_rank"], sampler=sampler)
    for epoch in range(done + 1, epochs + 1):
        sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
        with torch.no_grad():
            error = (net(held_inputs).argmax(dim=1) != held_targets).double().mean()
        if (folder := automl.checkpoint(epoch)) and rank == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
            (folder / "epoch.json").write_text(json.dumps(epoch))
        parameters = sum(parameter.numel() for parameter in net.parameters())
        automl.report(epoch=epoch, val_error=error, model_parameters=parameters)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
