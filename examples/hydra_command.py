"""A script that uses Hydra, as a trial: options have the form NAME=VALUE. Needs hydra-core."""

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

import automl

ConfigStore.instance().store(name="config", node={"optimizer": {"lr": 0.1}, "epochs": 8})


@hydra.main(version_base=None, config_name="config")
def train(config: DictConfig) -> None:
    """Minimize w^2 / 2 by gradient descent."""
    weight = 1.0
    if folder := automl.resume():
        first, weight = map(float, (folder / "state").read_text().split())
    for epoch in range(int(first) + 1 if folder else 1, config.epochs + 1):
        weight -= config.optimizer.lr * weight
        if folder := automl.checkpoint(epoch):
            (folder / "state").write_text(f"{epoch} {weight!r}")
        automl.report(epoch=epoch, val_error=abs(weight))


if __name__ == "__main__":
    train()
