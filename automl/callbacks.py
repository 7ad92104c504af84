"""Callbacks for scripts that run as commands: they report each epoch, and save due checkpoints.

    callback = callbacks.lightning()
    Trainer(callbacks=[callback]).fit(model, ckpt_path=callback.resume_from)

    callback = callbacks.hugging_face()
    Trainer(model, arguments, ..., callbacks=[callback]).train(resume_from_checkpoint=callback.resume_from)

    callback = callbacks.keras()
    model = keras.models.load_model(callback.resume_from) if callback.resume_from else ...
    model.fit(..., callbacks=[callback], initial_epoch=callback.done)

Outside a trial the callbacks do nothing. After a resume, early stopping's patience starts again. Training functions use
`automl.libraries` instead.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from automl.inside_trial import checkpoint, report, resume

TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time", "_compilation_time")
"""Endings of the names with which transformers logs the speed of an evaluation."""


def lightning() -> Any:
    """Return a callback for Lightning, which reports `trainer.callback_metrics` of each epoch.

    Its `resume_from` is the path of an earlier attempt's checkpoint, or None.
    """
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    library: Any = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch")

    class Reports(library.Callback):  # type: ignore[misc]
        resume_from = _resumed("trial.ckpt")
        _epoch = _Epoch()

        def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
            number = trainer.current_epoch + 1
            write = lambda folder: trainer.save_checkpoint(folder / "trial.ckpt")  # noqa: E731
            self._epoch.save(number, write, last=number == trainer.max_epochs)

        def on_train_epoch_start(self, trainer: Any, _module: Any) -> None:
            self._epoch.send(trainer.callback_metrics)

        def on_train_end(self, trainer: Any, _module: Any) -> None:
            self._epoch.send(trainer.callback_metrics, last=True)

    return Reports()


def hugging_face() -> Any:
    """Return a callback for `transformers.Trainer`, which reports each evaluation within a training as an epoch.

    Set `eval_strategy="epoch"`. Its `resume_from` is the folder of an earlier attempt's checkpoint, or None.
    """
    import torch
    from transformers import TrainerCallback
    from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
    from transformers.utils import WEIGHTS_NAME

    class Reports(TrainerCallback):  # type: ignore[misc]
        resume_from = _resumed("")
        _epoch = _Epoch()
        _metrics: Mapping[str, Any] | None = None  # None outside a training

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._metrics = {}

        def on_evaluate(self, _arguments: Any, state: Any, control: Any, **more: Any) -> None:
            if self._metrics is None or not state.global_step:  # `eval_on_start`
                return
            lines = [line for line in state.log_history if any(name.startswith("eval_") for name in line)]
            number = len({line["step"] for line in lines if line["step"]})  # several sets are evaluated at one step
            found = {name: one for name, one in more["metrics"].items() if not name.endswith(TIMES)}
            self._metrics = {**self._metrics, **found}

            def write(folder: Path) -> None:
                if state.is_world_process_zero:
                    parts = {WEIGHTS_NAME: getattr(more["model"], "module", more["model"])}
                    parts |= {OPTIMIZER_NAME: more["optimizer"], SCHEDULER_NAME: more["lr_scheduler"]}
                    for name, part in parts.items():
                        torch.save(part.state_dict(), folder / name)
                    state.save_to_json(str(folder / TRAINER_STATE_NAME))

            self._epoch.save(number, write, last=control.should_training_stop)

        def on_save(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            if control.should_training_stop:  # afterwards the trainer may load its best weights
                self._epoch.save_as_last()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._epoch.send(self._metrics or {})
            self._metrics = {}

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._epoch.send(self._metrics or {}, last=True)
            self._metrics = None

    return Reports()


def keras() -> Any:
    """Return a callback for `fit` of Keras 3, which reports the logs of each epoch.

    Its `resume_from` is the path of an earlier attempt's model, or None; `done` is the number of trained epochs.
    """
    library: Any = importlib.import_module("keras")

    class Reports(library.callbacks.Callback):  # type: ignore[misc]
        resume_from = _resumed("model.keras")
        done = 0 if resume_from is None else int(Path(resume_from).with_name("epoch").read_text(encoding="utf-8"))
        _epoch = _Epoch()
        _logs: Mapping[str, Any] = {}

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            def write(folder: Path) -> None:
                self.model.save(folder / "model.keras")
                (folder / "epoch").write_text(str(epoch + 1), encoding="utf-8")

            self._logs = dict(logs or {})
            self._epoch.save(epoch + 1, write, last=epoch + 1 == self.params["epochs"])

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self._epoch.send(self._logs)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._epoch.send(self._logs, last=True)

    return Reports()


class _Epoch:
    """The last ended epoch. It is reported when the next epoch begins, because callbacks may stop until then."""

    def __init__(self) -> None:
        self._number, self._is_last = 0, False
        self._write: Callable[[Path], object] = Path

    def save(self, number: int, write: Callable[[Path], object], *, last: bool) -> None:
        """Store the ended epoch `number`, and let `write` fill a folder if a checkpoint is due."""
        self._number, self._write, self._is_last = number, write, last
        if folder := checkpoint(number, last=last):
            write(folder)

    def save_as_last(self) -> None:
        """Save the epoch as the last epoch, unless it is saved so or reported already."""
        if self._number and not self._is_last:
            self.save(self._number, self._write, last=True)

    def send(self, metrics: Mapping[str, Any], *, last: bool = False) -> None:
        """Report the epoch unless it is reported already, and wait for the search's decision."""
        if last:
            self.save_as_last()
        number, self._number = self._number, 0
        if number:
            numbers: dict[str, Any] = {name: float(one) for name, one in metrics.items() if name not in _NO_METRICS}
            report(number, last=last, **numbers)


_NO_METRICS = frozenset({"epoch", "last", "step"})


def _resumed(name: str) -> str | None:
    folder = resume()
    return None if folder is None else str(folder / name)
