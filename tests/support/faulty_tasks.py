"""Tasks that go wrong in ways that users' tasks do."""

import ctypes
import os
import time
from pathlib import Path

import torch
from torch import nn

from trainers.contract.task import BaseTask


class Faulty(BaseTask):
    """Two blobs. `params["fault"]` says what happens in epoch `params["at_epoch"]` to rank `params["at_rank"]`.

    -1 as `at_rank` stands for all ranks.
    """

    parameters = ("fault", "at_rank", "at_epoch", "once")

    def __init__(self, once_file: str = "") -> None:
        self.once_file = once_file

    def train_data(self, params):
        generator = torch.Generator().manual_seed(0)
        targets = torch.arange(64) % 2
        return torch.randn(64, 2, generator=generator) + 3 * targets[:, None], targets

    def validation_data(self, params):
        return self.train_data(params)

    def metrics(self, outputs, targets):
        return {**super().metrics(outputs, targets), "val_same_loss": self.loss(outputs, targets)}

    def model(self, params):
        return Breaking(params, self.once_file)


class Hanging(Faulty):
    """Hangs in other places than its model: `params["fault"]` says where, in the attempt that writes `once_file`."""

    def train_data(self, params):
        inputs, targets = super().train_data(params)
        if params["fault"] == "data loading":
            time.sleep(3600)
        if params["fault"] == "uneven loading" and self.is_first():
            time.sleep(6)
        return inputs, targets

    def is_first(self):
        """Whether no other rank has asked before."""
        try:
            os.close(os.open(self.once_file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class NeedsVariable(Faulty):
    """Needs a variable of the environment."""

    def train_data(self, params):
        assert os.environ["SET_BY_USER"]
        return super().train_data(params)


class Breaking(nn.Module):
    def __init__(self, params, once_file):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.params, self.once_file, self.steps = params, once_file, 0

    def forward(self, x):
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if self.training and int(self.params.get("at_rank", 0)) in {rank, -1}:
            self.steps += 1
            # A step is one batch: with 2 ranks x 8 of 64 samples an epoch has four.
            if self.steps == 4 * int(self.params.get("at_epoch", 2)) - 3 and self.armed():
                self.fault(x)
        if self.training and self.params.get("fault") in {"slow", "very slow"}:
            time.sleep(0.05 if self.params["fault"] == "slow" else 0.6)
        return self.linear(x)

    def armed(self):
        if not self.once_file:
            return True
        path = Path(self.once_file)
        if path.exists():
            return False
        path.write_text("done")
        return True

    def fault(self, x):
        fault = self.params.get("fault")
        if fault == "die":
            os._exit(7)
        if fault == "hang":
            time.sleep(3600)
        if fault == "hang in C code":  # which keeps Python's interpreter lock
            while True:  # a signal ends the sleep
                ctypes.PyDLL(None).sleep(3600)
        if fault == "hang in a collective":
            torch.distributed.recv(torch.zeros(1), src=1 - torch.distributed.get_rank())
        if fault == "raise":
            raise ValueError("the user's own mistake")
        if fault == "memory":
            torch.empty(2**46)
        if fault == "diverge":
            with torch.no_grad():
                self.linear.weight.fill_(float("nan"))
