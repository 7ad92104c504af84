"""The model in Hugging Face's Trainer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset
from transformers import EvalPrediction, Trainer, TrainingArguments

from automl import Trial
from automl.libraries import hugging_face
from same_model_parts import workload


class Net(nn.Module):
    """The network with its loss, as a transformer has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = workload.network(width)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and outputs."""
        logits = self.network(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Named(Dataset[dict[str, Tensor]]):
    """Samples with names, as the trainer wants them."""

    def __init__(self, samples: TensorDataset) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, label = self._samples[index]
        return {"inputs": inputs, "labels": label}


def error(predicted: EvalPrediction) -> dict[str, float]:
    """Return the share of errors, which the trainer calls `eval_error`."""
    return {"error": float((predicted.predictions.argmax(-1) != predicted.label_ids).mean())}


def train(trial: Trial) -> None:
    """Train with the Trainer, whose clipping and schedule are off."""
    params: Any = trial.params
    given: dict[str, Any] = hugging_face.options(trial)
    arguments = TrainingArguments(
        **given, lr_scheduler_type="constant", max_grad_norm=0.0, per_device_eval_batch_size=500
    )
    training, validation = map(Named, workload.datasets())
    trainer = Trainer(
        Net(params["width"]),
        arguments,
        train_dataset=training,
        eval_dataset=validation,
        compute_metrics=error,
    )
    hugging_face.fit(trial, trainer)
