"""Wraps models for data-parallel training: gradient exchange and compression, sharding, compiled code.

fp16 and bf16 compression halve the traffic. PowerSGD (Vogels et al. 2019, arXiv 1905.13727) sends two thin matrices
instead of a matrix's gradient if they are at most half its size, and adds the error to the next step's gradient.
"""

import copy
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from trainers.contract.task import Params, Task, grows, model_of
from trainers.data.samples import few_of, load_samples
from trainers.data.seeds import derive, reseed
from trainers.data.streams import StreamSamples
from trainers.loop.step_counter import ExchangeTimes
from trainers.model.precision import format_of, has_channels_last, images_channels_last
from trainers.model.sharding import checkpoint_activations, has_values, shard_fully
from trainers.protocol import TaskError
from trainers.ranks.process import return_freed_tensors
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings

_EXACT_STEPS = 2
"""First steps in which PowerSGD sends whole gradients, because DDP rebuilds its buckets in the first step."""

_EPSILON = 1e-8  # added in the orthogonalization, so that zero gradients do not become NaN


class Compression:
    """Compression of a DDP model's gradients."""

    def __init__(self, network: DistributedDataParallel, compress: str, powersgd_rank: int) -> None:
        self._rank = powersgd_rank
        self._state: PowerSGDState | None = None
        if compress == "fp16":
            network.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif compress == "bf16":
            network.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif compress == "powersgd":
            self._state = self._fresh()
            network.register_comm_hook(self._state, _powersgd)

    def begin_epoch(self) -> None:
        """Reset PowerSGD, so that checkpoints need not store each rank's error. Two exact steps follow."""
        if self._state is not None:
            fresh = self._fresh()
            for name in ("error_dict", "p_memory_dict", "q_memory_dict", "iter", "rng"):
                setattr(self._state, name, getattr(fresh, name))

    def _fresh(self) -> PowerSGDState:
        return PowerSGDState(
            None,
            matrix_approximation_rank=self._rank,
            start_powerSGD_iter=_EXACT_STEPS,
            orthogonalization_epsilon=_EPSILON,
        )


@wraps(powerSGD_hook)  # DDP reads a hook's annotations, and refuses strings
def _powersgd(state: PowerSGDState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Run torch's PowerSGD hook, and restore the GPU's random generator afterwards."""
    device = bucket.buffer().device
    if device.type != "cuda" or bucket.index() in state.p_memory_dict:
        return powerSGD_hook(state, bucket)
    drawn = torch.cuda.get_rng_state(device)
    try:
        return powerSGD_hook(state, bucket)
    finally:
        torch.cuda.set_rng_state(drawn, device)


RECOMPILE_LIMIT = 64
"""Limit for compiled variants of a function (torch's is 8): a loop over uncompiled blocks needs one per block."""

_COMPILERS = ("g++", "clang++", "c++")


class Compiled:
    """A function that torch compiles at its first call, and again for inputs of another form.

    Raises TaskError beyond the limit of variants: torch would run uncompiled, which distorts time and cost.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        _require_compiler(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 warns about an import of its own compiler
            self._function: Callable[..., Any] = torch.compile(function)
            from torch._dynamo import config, exc
        self._limit_was_hit = exc.FailOnRecompileLimitHit
        self._limit: Any = config.patch(recompile_limit=RECOMPILE_LIMIT, fail_on_recompile_limit_hit=True)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        try:
            with self._limit:  # 7 us
                return self._function(*args)
        except self._limit_was_hit as error:
            raise TaskError(
                f"compile is true, but the model needs more than {RECOMPILE_LIMIT} variants of compiled code, probably "
                "because it depends on Python values that change between steps. Keep them in tensors "
                "(TORCH_LOGS=recompiles names them), or set compile to false"
            ) from error

    def close(self) -> None:
        """Delete all compiled code of this process."""
        torch.compiler.reset()


def _require_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        return
    given = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([given] if given else _COMPILERS)):
        looked = f"CXX={given}" if given else ", ".join(_COMPILERS)
        raise TaskError(
            f"compile is true, but there is no C++ compiler ({looked}). Install one, set CXX, or set compile to false"
        )


_UNUSED = re.compile(r".*did not receive grad for rank \d+: ([\d ]+).*", re.DOTALL)
_MOST_NAMES = 5


class NamingDDP(DistributedDataParallel):
    """DistributedDataParallel whose error for unused parameters names the parameters."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Pass a batch. Raises TaskError if parameters had no gradient in the previous step."""
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not is_about_unused(error):
                raise
            raise TaskError(unused_line(self.module, str(error))) from error


def is_about_unused(error: RuntimeError) -> bool:
    """Return whether an error is DDP's about parameters without a gradient."""
    return "find_unused_parameters" in str(error)


def unused_line(module: nn.Module, said: str) -> str:
    """Return DDP's error about parameters without a gradient as a line that names them."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    numbers = [int(number) for number in _UNUSED.sub(r"\1", said).split()] if _UNUSED.fullmatch(said) else []
    names = [trained[number] for number in numbers if number < len(trained)]
    which = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    return (
        f"find_unused_parameters is false, but parameters had no gradient in a step: {which or 'unknown ones'}. Set "
        "find_unused_parameters to true, remove the parameters, or set their requires_grad to False"
    )


_AS_IT_IS = nullcontext()
_ONE_VALUE = "Expected more than 1 value per channel"  # BatchNorm's message about a batch without variance


class Network:
    """Wraps a model for training. Evaluations and checkpoints use the unwrapped model.

    For full sharding, the model is first on the CPU or meta device, and `fill` sets modules' values on the CPU.

    Attributes:
        is_sharded: Each rank holds only its part of the weights, so all ranks must run each pass together.
        needs_pairs: The model cannot train on one sample, for which BatchNorm1d has no variance.
    """

    def __init__(
        self, module: nn.Module, settings: Settings, group: Group, fill: Callable[[list[nn.Module]], None] = has_values
    ) -> None:
        self._module = module
        self._ddp: DistributedDataParallel | None = None
        self._exchanges: ExchangeTimes | None = None
        self._compression: Compression | None = None
        self.is_sharded = shards_fully(settings, group)
        if grows(module) and (self.is_sharded or settings.activation_checkpointing):
            option = "shard full" if self.is_sharded else "activation_checkpointing true"
            raise TaskError(f"{option} needs a model that is trained by gradient steps. Remove the option")
        if settings.activation_checkpointing:
            checkpoint_activations(module, compiled=settings.compile)
        if self.is_sharded:
            gathered = format_of(settings.precision, group.device) if settings.shard_precision == "training" else None
            shard_fully(module, group.device, fill=fill, gathered=gathered, offloads=settings.shard_offload)
        elif group.world_size > 1 and not grows(module):
            self._ddp = _distributed(module, settings, group)
            self._exchanges = ExchangeTimes(self._ddp, on_cpu=group.device.type == "cpu")
            if settings.compress != "none":
                self._compression = Compression(self._ddp, settings.compress, settings.powersgd_rank)
        norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
        self._own_norms = [norm for norm in norms if not isinstance(norm, nn.SyncBatchNorm)]
        self._shared_norms = [norm for norm in norms if isinstance(norm, nn.SyncBatchNorm)]
        self.has_norms = bool(self._own_norms)
        self.needs_pairs = any(isinstance(norm, nn.BatchNorm1d) for norm in self._own_norms)
        self._forward: Callable[..., Any] = self._ddp or module
        self._turns_images = has_channels_last(settings, group.device)
        self._compiled: Compiled | None = None
        if settings.compile and not grows(module):
            self._forward = self._compiled = Compiled(self._forward, group.device)

    def __call__(self, inputs: Any) -> Any:
        """Pass a batch. TaskError if parameters had no gradient before, or BatchNorm got a single value."""
        try:
            return self._forward(images_channels_last(inputs) if self._turns_images else inputs)
        except RuntimeError as error:
            if self._ddp is None or not is_about_unused(error):
                raise
            raise TaskError(unused_line(self._module, str(error))) from error
        except ValueError as error:
            if _ONE_VALUE not in str(error):
                raise
            raise TaskError(
                "in a batch, BatchNorm got one value per channel, which has no variance. Set batch_per_rank to at "
                "least 2, or use a model without BatchNorm"
            ) from error

    def passing(self, *, exchanges: bool) -> AbstractContextManager[object]:
        """Return the context of a forward and backward pass, with or without exchanging gradients."""
        if self._ddp is not None:
            return _AS_IT_IS if exchanges else self._ddp.no_sync()
        if self.is_sharded:
            cast("Any", self._module).set_requires_gradient_sync(exchanges)
        return _AS_IT_IS

    @contextmanager
    def without_statistics(self) -> Iterator[None]:
        """Exclude an empty batch from BatchNorm's running and exchanged statistics."""
        training = [norm for norm in self._own_norms if norm.training]  # a task may have frozen some norms
        exchanging = [norm for norm in self._shared_norms if norm.training]
        for norm in training:
            norm.training = False
        for norm in exchanging:
            norm.forward = partial(_joined_without_samples, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for norm in training:
                norm.training = True
            for norm in exchanging:
                del norm.forward

    @property
    def passes_together(self) -> bool:
        """Return whether all ranks need equally many passes in a step."""
        return self.is_sharded or bool(self._shared_norms)

    def begin_epoch(self, seed: int) -> None:
        """Reset PowerSGD, and pass `seed` to modules with a method `set_epoch_seed`."""
        for part in self._module.modules():
            if hasattr(part, "set_epoch_seed"):
                cast("Any", part).set_epoch_seed(seed)
        if self._compression is not None:
            self._compression.begin_epoch()

    def end_evaluation(self) -> None:
        """Reshard after evaluation: FSDP keeps the root module's weights gathered for a backward pass."""
        if self.is_sharded:
            cast("Any", self._module).reshard()

    def close(self) -> None:
        """Delete compiled code and reset the memory allocator, which belong to the whole process."""
        if self.is_sharded:
            return_freed_tensors(at_once=False)
        if self._compiled is not None:
            self._compiled.close()

    def exchange_seconds(self) -> float:
        """Return the mean seconds of a gradient exchange since the last call; 0 without DDP."""
        return 0.0 if self._exchanges is None else self._exchanges.mean_seconds()


def shards_fully(settings: Settings, group: Group) -> bool:
    """Return whether ranks divide the weights."""
    return group.world_size > 1 and settings.shard == "full"


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Restore after the block whether each layer trains or evaluates."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, is_training in modes:  # parents first, because `train` sets their children, too
            if part.training != is_training:
                part.train(is_training)


def _joined_without_samples(norm: nn.SyncBatchNorm, inputs: Tensor) -> Tensor:
    """Normalise by running statistics, and join the other ranks' exchanges without samples."""
    # Many models refuse an empty batch, so this batch has a sample. torch exchanges empty statistics in the inputs'
    # format, but others in at least single precision: without the conversion, NCCL would wait for bytes forever.
    nobody = inputs[:0].to(torch.promote_types(inputs.dtype, torch.float32))
    nothing = type(norm).forward(norm, nobody).sum()  # 0, whose gradient is exchanged
    if norm.running_mean is None or norm.running_var is None:
        return inputs + nothing
    normalised = functional.batch_norm(
        inputs, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
    )
    return normalised + nothing


def _distributed(module: nn.Module, settings: Settings, group: Group) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=settings.find_unused_parameters,
        bucket_cap_mb=_bucket_mb(module, settings),
    )


def _bucket_mb(module: nn.Module, settings: Settings) -> float | None:
    """Return the size of a gradient bucket in megabytes; None means torch's default."""
    # PowerSGD sends twice per bucket, and gloo matches messages only by order, which may differ: one bucket for all.
    if settings.compress == "powersgd" and dist.get_backend() == "gloo":
        return 1.0 + sum(one.numel() * one.element_size() for one in module.parameters()) / 2**20
    return None if isinstance(settings.bucket_mb, str) else settings.bucket_mb


SECONDS = 5.0
"""CPU seconds after which counting begins no further example; half of them for counting parameters."""
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
    """Count parameters and operations of each example, until `seconds` of CPU time are used.

    Skips examples that cannot be built. A row has `params`, `model_parameters`, `flops_per_sample` of a forward pass (a
    multiplication and an addition count as two) and `samples_per_epoch`; the last two may be None. `training` is the
    spec's section.
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
            sum(parameter.numel() for parameter in model.parameters())  # raises for lazy parameters without a shape
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
    return _work(flops, samples) if flops else _work(None, None)  # trees only compare, and count 0


def _samples_per_epoch(task: Task, params: Params, training: Mapping[str, Any]) -> int | None:
    samples = load_samples(task, "train", params, _CPU)
    wanted = params.get("samples_per_epoch", training.get("samples_per_epoch", "auto"))
    is_pass = isinstance(wanted, str) or wanted is None
    if isinstance(samples, StreamSamples):
        return None if is_pass else int(wanted)
    return len(samples) if is_pass else min(len(samples), int(wanted))
