"""Scripts of libraries as commands: one callback reports, saves and resumes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_trials import Grants, run, script, spec_of

pytestmark = pytest.mark.large

DATA = """
    import torch
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    targets = inputs.sum(dim=1, keepdim=True)
"""
LIGHTNING = (
    DATA
    + """
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset
    from automl import callbacks

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("val_error", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    batches = DataLoader(TensorDataset(inputs, targets), batch_size=16)
    callback = callbacks.lightning()
    trainer = pl.Trainer(
        max_epochs=4, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        accelerator="cpu",
    )
    trainer.fit(Model(), batches, batches, ckpt_path=callback.resume_from)
"""
)
HUGGING_FACE = (
    DATA
    + """
    from transformers import Trainer, TrainingArguments
    from automl import callbacks

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            outputs = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}

    rows = [{"x": x, "labels": y} for x, y in zip(inputs, targets)]
    callback = callbacks.hugging_face()
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=4, eval_strategy="epoch", save_strategy="no", report_to="none",
        disable_tqdm=True, per_device_train_batch_size=16, use_cpu=True, learning_rate=0.01,
    )
    trainer = Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_from)
    trainer.evaluate()
"""
)
KERAS = (
    DATA
    + """
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from automl import callbacks

    keras.utils.set_random_seed(0)
    callback = callbacks.keras()
    if callback.resume_from:
        model = keras.models.load_model(callback.resume_from)
    else:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    model.fit(
        inputs.numpy(), targets.numpy(), validation_data=(inputs.numpy(), targets.numpy()), batch_size=16, epochs=4,
        shuffle=False, verbose=0, callbacks=[callback], initial_epoch=callback.done,
    )
"""
)


@pytest.mark.parametrize(
    ("text", "metric"), [(LIGHTNING, "val_error"), (HUGGING_FACE, "eval_loss"), (KERAS, "val_loss")],
    ids=["lightning", "hugging_face", "keras"],
)  # fmt: skip
def test_a_script_with_a_callback_reports_saves_and_resumes(tmp_path: Path, text: str, metric: str) -> None:
    script(tmp_path, text)
    options = {"command": [sys.executable, "train.py"], "environment": {"PYTHONPATH": ":".join(sys.path)}}
    first = run(spec_of(tmp_path, options), Grants(drains_with=2))
    assert first.epochs == [1, 2]
    kept = first.measurements[-1].checkpoint
    assert kept is not None
    second = run(spec_of(tmp_path, options, resume_from=kept, attempt=2))
    assert second.epochs == [3, 4]
    errors = [one.metrics[metric] for one in (*first.measurements, *second.measurements)]
    assert errors == sorted(errors, reverse=True), "the second attempt continues where the first ended"


STOPS = {
    "lightning": (
        LIGHTNING.replace("[callback]", "[callback, pl.callbacks.EarlyStopping('val_error', patience=1)]"),
        ("return torch.nn.functional.mse_loss(self", "return 0 * torch.nn.functional.mse_loss(self"),
    ),
    "hugging_face": (
        HUGGING_FACE.replace("callbacks=[callback]", "callbacks=[callback, EarlyStoppingCallback(1)]")
        .replace("import Trainer,", "import EarlyStoppingCallback, Trainer,")
        .replace('save_strategy="no"', 'save_strategy="epoch", load_best_model_at_end=True, eval_on_start=True')
        .replace("eval_dataset=rows", 'eval_dataset={"a": rows, "b": rows}')
        .replace("learning_rate=0.01", 'learning_rate=0.0, metric_for_best_model="eval_a_loss"'),
        ("", ""),
    ),
    "keras": (
        KERAS.replace("callbacks=[callback]", "callbacks=[callback, keras.callbacks.EarlyStopping(patience=1)]"),
        ("keras.optimizers.Adam(0.01)", "keras.optimizers.SGD(0.0)"),
    ),
}  # fmt: skip
"""Scripts whose error does not improve, so that they stop after epoch 2 of 4, with the change that makes it so."""


@pytest.mark.parametrize("library", STOPS)
def test_a_script_that_stops_early_completes_its_trial(tmp_path: Path, library: str) -> None:
    text, (old, new) = STOPS[library]
    script(tmp_path, text.replace(old, new) if old else text)
    options = {"command": [sys.executable, "train.py"], "environment": {"PYTHONPATH": ":".join(sys.path)}}
    done = run(spec_of(tmp_path, options))
    assert done.epochs == [1, 2]
    assert done.measurements[-1].complete
    assert done.measurements[-1].checkpoint is not None
    if library == "hugging_face":
        assert {"eval_a_loss", "eval_b_loss"} <= done.measurements[0].metrics.keys()


def test_outside_a_trial_callbacks_do_nothing(tmp_path: Path) -> None:
    script(tmp_path, LIGHTNING)
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
