import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import automl

x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
images, labels = x.float() / 16, y


def train(trial: automl.Trial) -> None:
    width = trial.params["width"]
    net = trial.prepare(nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)))  # in DDP on several ranks
    optimizer = torch.optim.AdamW(net.parameters(), lr=trial.learning_rate)  # scaled with the effective batch
    for _ in trial.epochs(net=net, optimizer=optimizer):  # resumes after a pause or a crash
        for inputs, targets in trial.loader(TensorDataset(images[:1400], labels[:1400])):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        wrong = net(images[1400:].to(trial.device)).argmax(1).cpu() != labels[1400:]
        trial.report(val_error=wrong.float().mean().item())


if __name__ == "__main__":
    study = automl.search(
        train,
        study="by-hand",
        space={"learning_rate": (1e-4, 0.1, "log"), "width": (16, 256), "optimizer": "adamw", "world_size": [1, 2]},
        objectives=["val_error", "cost_usd"],
        training={"epochs": 10},
        budget="1 min",
    )
    print(study)
