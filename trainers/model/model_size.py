"""Counts a model's size and computation on torch's `meta` device, without training, weights or memory."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from trainers.contract.task import Params, Task, model_of
from trainers.data.samples import few_of, load_samples
from trainers.data.seeds import derive, reseed
from trainers.data.streams import StreamSamples

SECONDS = 5.0
"""CPU seconds after which no further example begins; half of it for counts of parameters, which need no data."""
_SAMPLES = 2
_CPU, _META = torch.device("cpu"), torch.device("meta")


def count(
    task: Task,
    examples: Sequence[Params],
    training: Mapping[str, Any],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.process_time,
) -> list[dict[str, Any]]:
    """Return counts for each example that can be built, while `seconds` of CPU time, checked before each, are left.

    A row has `params`, `model_parameters`, `flops_per_sample` of a forward pass (a multiplication and an addition are
    two) and `samples_per_epoch`, both None if unknown; `training` is the spec's section.
    """
    start = clock()
    rows, models = list[dict[str, Any]](), list[nn.Module]()
    for params in examples:
        if clock() - start >= seconds / 2:
            break
        model = _built(task, params)
        if model is not None:
            models.append(model)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            rows.append({"params": dict(params), "model_parameters": parameters, **_work(None, None)})
    for row, model in zip(rows, models, strict=True):
        if clock() - start >= seconds:
            break
        row.update(_counted_work(task, model, row["params"], training))
    return rows


def _work(flops_per_sample: int | None, samples_per_epoch: int | None) -> dict[str, int | None]:
    return {"flops_per_sample": flops_per_sample, "samples_per_epoch": samples_per_epoch}


def _built(task: Task, params: Params) -> nn.Module | None:
    for device in (_META, _CPU):
        try:
            reseed(derive("weights", 0))
            with device:
                model = model_of(copy.copy(task), params)
            sum(parameter.numel() for parameter in model.parameters())  # parameters may have no shape yet
            return model.to(_META)
        except Exception:  # noqa: BLE001, S112 - the user's code may raise anything; a trial reports it
            continue
    return None


def _counted_work(task: Task, model: nn.Module, params: Params, training: Mapping[str, Any]) -> dict[str, int | None]:
    try:
        fresh = copy.copy(task)
        samples = _samples_per_epoch(fresh, params, training)
        validation = few_of(load_samples(fresh, "validation", params, _CPU), _SAMPLES)
        some = torch.arange(min(_SAMPLES, len(validation)))
        inputs, _ = next(iter(validation.batches([some])))
        on_meta = tree_map_only(Tensor, lambda tensor: tensor.to(_META), inputs)
        with _META, torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(on_meta)
    except Exception:  # noqa: BLE001 - as above, or the forward pass depends on values
        return _work(None, None)
    flops = counter.get_total_flops() // len(some)
    return _work(flops, samples) if flops else _work(None, None)  # 0 for trees, which only compare


def _samples_per_epoch(task: Task, params: Params, training: Mapping[str, Any]) -> int | None:
    samples = load_samples(task, "train", params, _CPU)
    wanted = params.get("samples_per_epoch", training.get("samples_per_epoch", "auto"))
    is_pass = isinstance(wanted, str) or wanted is None
    if isinstance(samples, StreamSamples):
        return None if is_pass else int(wanted)
    return len(samples) if is_pass else min(len(samples), int(wanted))
