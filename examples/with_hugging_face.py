"""A Hugging Face Trainer as a trial: two interleaved half-moons, classified by a small network."""

import torch
from own_task import moons
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

import automl
from automl.libraries import hugging_face


class Net(nn.Sequential):  # has the inputs and outputs of a transformer
    def __init__(self, width):
        super().__init__(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def samples(n, seed):
    return [{"x": x, "labels": label} for x, label in zip(*moons(n, seed), strict=True)]


def metrics(predicted):
    return {"error": float((predicted.predictions.argmax(-1) != predicted.label_ids).mean())}


def train(trial: automl.Trial) -> None:
    arguments = TrainingArguments(**hugging_face.options(trial), lr_scheduler_type="cosine")
    trainer = Trainer(
        Net(trial.params["width"]), arguments, train_dataset=samples(600, 0), eval_dataset=samples(300, 1),
        compute_metrics=metrics, optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": trial.learning_rate}),
    )  # fmt: skip
    hugging_face.fit(trial, trainer)
