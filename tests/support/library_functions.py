"""Training functions with libraries, as users write them; each library is imported where it is used."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

import automl
from tests.support.training_functions import blobs


def by_lightning(trial: automl.Trial, *, precision="32-true", fault="", workers=0, loaders="own") -> None:
    """Dropout, batch statistics, a schedule, and shuffled batches: all that a checkpoint has to bring back."""
    import lightning
    import torchmetrics

    from automl.libraries import lightning as trial_lightning

    class Module(lightning.LightningModule):
        def __init__(self, width, kind):
            super().__init__()
            self.save_hyperparameters()
            self.exact = torchmetrics.MeanMetric()
            self.net = nn.Sequential(
                nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 3)
            )

        def training_step(self, batch):
            if fault == "raises" and self.current_epoch == 1:
                raise ValueError("the user's own mistake")
            loss = cross_entropy(self.net(batch[0]), batch[1])
            if fault != "logs nothing":
                self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(batch[0]))
            return loss

        def validation_step(self, batch):
            wrong = self.net(batch[0]).argmax(dim=1) != batch[1]
            if fault != "logs nothing":
                self.log("val_error", wrong.float().mean(), sync_dist=True, batch_size=len(wrong))
                self.exact(wrong)
                self.log("exact_error", self.exact, on_epoch=True)
                self.log("wrong", wrong.float().sum(), sync_dist=True, reduce_fx="sum")
                if self.current_epoch % 2 == 0:
                    self.log("of_every_second_epoch", float(self.current_epoch))
                self.log("seen", float(len(wrong)), sync_dist=True, reduce_fx="sum")

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=trial.learning_rate)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    given = trial_lightning.options(trial) | ({"strategy": "auto", "devices": 1} if fault == "other ranks" else {})
    early = lightning.pytorch.callbacks.EarlyStopping("val_error", stopping_threshold=1.1)
    trainer = lightning.Trainer(**given, precision=precision, callbacks=[early] if fault == "has enough" else [])
    module = Module(8, nn.Linear)  # a type: no plain value, which a checkpoint cannot hold
    training = DataLoader(blobs(54, 0), batch_size=trial.batch_per_rank, shuffle=True, num_workers=workers)
    validation = DataLoader(blobs(31, 1), batch_size=7)
    if loaders == "the trial's":
        training, validation = (
            trial.loader(blobs(54, 0)),
            trial.loader(blobs(29, 1), batch_size=7, shuffle=False),  # 3 batches on rank 0, of 15 samples, 2 on rank 1
        )
    more = {"ckpt_path": "last"} if fault == "path" else {}
    trial_lightning.fit(trial, trainer, module, training, validation, **more)
    if fault == "tests":
        trainer.test(module, validation, verbose=False)


def by_hugging_face(trial: automl.Trial, *, bf16=False, fault="", dropout=0.2) -> None:
    """Dropout, batch statistics, a schedule, and shuffled batches: all that a checkpoint has to bring back."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from automl.libraries import hugging_face

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
            )

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    class Raises(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.epoch > 1:
                raise ValueError("the user's own mistake")

    class HasEnough(TrainerCallback):
        def on_evaluate(self, args, state, control, **_):
            control.should_training_stop = True

    def metrics(predicted):
        return {"error": float((predicted.predictions.argmax(-1) != predicted.label_ids).mean())}

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(training)

    training = [{"x": x, "labels": label} for x, label in blobs(54, 0)]
    changes: dict[str, dict[str, object]] = {
        "stream": {"max_steps": -(-54 // trial.batch_per_rank) * trial.max_epochs},
        "too many": {"num_train_epochs": trial.max_epochs + 1},
        "no evaluation": {"eval_strategy": "no"},
    }
    given = hugging_face.options(trial) | changes.get(fault, {})
    arguments = TrainingArguments(**given, bf16=bf16, lr_scheduler_type="cosine")
    if fault == "sees four GPUs":
        arguments._n_gpu = 4
    trainer = Trainer(
        Net(), arguments, train_dataset=Stream() if fault == "stream" else training,
        eval_dataset=[{"x": x, "labels": label} for x, label in blobs(31, 1)], compute_metrics=metrics,
        callbacks={"raises": [Raises()], "has enough": [HasEnough()]}.get(fault, []),
    )  # fmt: skip
    hugging_face.fit(trial, trainer)
    if fault == "evaluates":
        trainer.evaluate()


def by_accelerate(trial: automl.Trial, *, mixed_precision="no", fault="") -> None:
    """A loop with dropout, batch statistics, a schedule, and shuffled batches."""
    from automl.libraries import accelerate as trial_accelerate

    accelerator = trial_accelerate.accelerator(trial, mixed_precision=mixed_precision)
    assert (accelerator.num_processes, accelerator.process_index) == (trial.world_size, trial.rank)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    trial.modules.append(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=trial.learning_rate)
    training = DataLoader(blobs(54, 0), batch_size=trial.batch_per_rank, shuffle=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, training, schedule = accelerator.prepare(net, optimizer, training, schedule)
    for epoch in trial.epochs(model=model, optimizer=optimizer, schedule=schedule):
        training.set_epoch(epoch)
        for inputs, targets in training:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        schedule.step()
        if fault == "raises":
            raise ValueError("the user's own mistake")
        trial.report(train_loss=trial.mean(loss))


def by_keras(trial: automl.Trial, *, fault="") -> None:
    """Dropout and shuffled batches."""
    import keras

    from automl.libraries import keras as trial_keras

    keras.utils.set_random_seed(trial.seed % 2**32)
    first = [] if fault == "not built" else [keras.Input((4,))]
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    model = keras.Sequential([*first, *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(trial.learning_rate), loss=loss, metrics=["accuracy"])
    (inputs, targets), validation = (tuple(part.numpy() for part in blobs(n, n).tensors) for n in (54, 31))
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model, "stop_training", True))
    enough = [stop] if fault == "has enough" else []
    more = {"epochs": 5} if fault == "epochs" else {}
    data = [inputs, targets]
    if fault == "named":
        more, data = {"x": inputs, "y": targets}, []
    if fault == "list":
        data[0] = [inputs]
    batches = []
    counting = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: batches.clear(),
        on_train_batch_end=lambda batch, **_: batches.append(batch),
        on_epoch_end=lambda _, logs: logs.update(batches=len(batches)),
    )
    trial_keras.fit(trial, model, *data, validation_data=validation, callbacks=[counting, *enough], **more)


def by_another(trial: automl.Trial, *, epochs=None) -> None:
    """A library that nobody here knows: it drives its loop, and calls back."""
    from automl.libraries.epoch_calls import EpochCalls

    class Runner:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate)
            self.on_epoch_begin = self.on_validation = None

        def fit(self, first_epoch, epochs):
            for _ in range(first_epoch, epochs):
                self.on_epoch_begin()
                for inputs, targets in trial.loader(blobs(54, 0)):
                    self.optimizer.zero_grad()
                    loss = cross_entropy(self.model(inputs), targets)
                    loss.backward()
                    self.optimizer.step()
                self.on_validation({"loss": loss.detach()})

    runner = Runner(trial.prepare(nn.Linear(4, 3)))
    calls = EpochCalls(trial, model=runner.model, optimizer=runner.optimizer)
    runner.on_epoch_begin = calls.begin
    runner.on_validation = lambda metrics: calls.report(metrics, "Runner")
    runner.fit(first_epoch=calls.done, epochs=epochs or trial.max_epochs)
