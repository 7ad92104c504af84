"""Callbacks for scripts that run as commands: each epoch is reported, and saved where a checkpoint is wanted.

    callback = callbacks.lightning()
    Trainer(callbacks=[callback]).fit(model, ckpt_path=callback.resume_from)

    callback = callbacks.hugging_face()
    Trainer(model, arguments, ..., callbacks=[callback]).train(resume_from_checkpoint=callback.resume_from)

    callback = callbacks.keras()
    model = keras.models.load_model(callback.resume_from) if callback.resume_from else ...
    model.fit(..., callbacks=[callback], initial_epoch=callback.done)

Outside a trial they do nothing. Training functions use `automl.libraries` instead.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automl.inside_trial import checkpoint, report, resume

_TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time", "_compilation_time")
"""Endings of the names under which transformers logs the speed of an evaluation."""


def lightning() -> Any:
    """Return a callback for Lightning, which reports `trainer.callback_metrics` after each epoch.

    Its `resume_from` is the path of an earlier attempt's checkpoint, or None.
    """
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    library: Any = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch")

    class Reports(library.Callback):  # type: ignore[misc]
        resume_from = _resumed("trial.ckpt")

        def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
            epoch, last = trainer.current_epoch + 1, bool(trainer.should_stop)
            if folder := checkpoint(epoch, last=last):
                trainer.save_checkpoint(folder / "trial.ckpt")
            report(epoch, last=last, **_numbers(trainer.callback_metrics))

    return Reports()


def hugging_face() -> Any:
    """Return a callback for `transformers.Trainer`, which reports each evaluation as an epoch.

    Set `eval_strategy="epoch"`. Its `resume_from` is the folder of an earlier attempt's checkpoint, or None.
    """
    import torch
    from transformers import TrainerCallback
    from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
    from transformers.utils import WEIGHTS_NAME

    class Reports(TrainerCallback):  # type: ignore[misc]
        resume_from = _resumed("")
        _is_training = False

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._is_training = True

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._is_training = False

        def on_evaluate(self, _arguments: Any, state: Any, _control: Any, **more: Any) -> None:
            if not self._is_training:
                return
            epoch = sum(any(name.startswith("eval_") for name in line) for line in state.log_history)
            folder = checkpoint(epoch)
            if folder is not None and state.is_world_process_zero:
                model = getattr(more["model"], "module", more["model"])
                parts = {WEIGHTS_NAME: model, OPTIMIZER_NAME: more["optimizer"], SCHEDULER_NAME: more["lr_scheduler"]}
                for name, part in parts.items():
                    torch.save(part.state_dict(), folder / name)
                state.save_to_json(str(folder / TRAINER_STATE_NAME))
            found = {name: one for name, one in more["metrics"].items() if not name.endswith(_TIMES)}
            report(epoch, **_numbers(found))

    return Reports()


def keras() -> Any:
    """Return a callback for `fit` of Keras 3, which reports the logs of each epoch.

    Its `resume_from` is the path of an earlier attempt's model, or None; `done` is the number of trained epochs.
    """
    library: Any = importlib.import_module("keras")

    class Reports(library.callbacks.Callback):  # type: ignore[misc]
        resume_from = _resumed("model.keras")
        done = 0 if resume_from is None else int(Path(resume_from).with_name("epoch").read_text(encoding="utf-8"))

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            last = bool(self.model.stop_training)
            if folder := checkpoint(epoch + 1, last=last):
                self.model.save(folder / "model.keras")
                (folder / "epoch").write_text(str(epoch + 1), encoding="utf-8")
            report(epoch + 1, last=last, **_numbers(logs or {}))

    return Reports()


def _resumed(name: str) -> str | None:
    folder = resume()
    return None if folder is None else str(folder / name)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(one) for name, one in metrics.items() if name not in {"epoch", "last", "step"}}
