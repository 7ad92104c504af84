"""Models that are larger than what one rank may hold.

A limit L of the kernel (`RLIMIT_DATA`) bounds what a rank gets beyond its memory after a small training. The training
state has 3 L bytes, of which four ranks hold 0.75 L each. With SGD the weights alone are 1.5 L, with AdamW 0.75 L.
"""

import gc
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.trainer_pool import Pool, spec_of
from trainers.checkpoints.checkpoint import check_checkpoint, read_checkpoint
from trainers.checkpoints.model_export import export_model, load_exported
from trainers.contract.task_loading import load_task
from trainers.failures import classified
from trainers.loop.trainer import Trainer
from trainers.protocol import OutOfMemoryError
from trainers.ranks.process import free_memory

pytestmark = pytest.mark.large

MIB = 2**20
LIMIT = 48 * MIB
WIDTH = 724
BLOCK_BYTES = 4 * WIDTH * (WIDTH + 1)
COPIES = {"sgd": 2, "adamw": 4}
"""How many times the weights the training state is."""
OPTIMIZERS = {"sgd": {"optimizer": "sgd", "momentum": 0.0}, "adamw": {"optimizer": "adamw", "learning_rate": 1e-3}}


@pytest.fixture
def fresh():
    """Rank processes that have trained nothing yet, so that no memory is left over in them."""
    pool = Pool()
    yield pool
    pool.close()


def spec_for(limit_bytes, optimizer, world_size=4, *, training=None, **more):
    blocks = round(3 * limit_bytes / COPIES[optimizer] / BLOCK_BYTES)
    options = {"kind": "compilable", "width": WIDTH, "dtype": "float32", "blocks": blocks, "n": 16, "n_validation": 4}
    training = {"epochs": 2, "shard": "full", "init_by_module": True, "fused": True, **(training or {})}
    return spec_of(world_size, params=OPTIMIZERS[optimizer], options=options, training=training, **more)


def limited(group, limit_bytes, work, *args):
    """Call `work(group, *args)` with so many bytes more than the process has now."""
    gc.collect()
    free_memory(None)
    text = Path("/proc/self/status").read_text()
    now = int(text.partition("VmData:")[2].split()[0]) * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (now + limit_bytes, hard))
    try:
        with classified():
            return work(group, *args)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        gc.collect()


def limited_on_rank_0(group, limit_bytes, work, *args):
    return (limited if group.rank == 0 else _unlimited)(group, limit_bytes, work, *args)


def _unlimited(group, _, work, *args):
    return work(group, *args)


def train(group, spec, until=1000):
    """Train and return the last measurement."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    try:
        *_, last = trainer.advance(until)
        return last
    finally:
        trainer.close()


def export(_, checkpoint, out):
    export_model(checkpoint, out)


def gathered(group, spec):
    """Train, and gather the whole state on rank 0, as checkpoints were made of it before."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    try:
        list(trainer.advance(1))
        module, optimizer = trainer.module, trainer._state.optimizer
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole = get_model_state_dict(module, options=options)
        return len(whole), len(get_optimizer_state_dict(module, optimizer, options=options))
    finally:
        trainer.close()


def assert_good(answers):
    for answer in answers:
        assert not isinstance(answer, Exception), answer


def warmed_up(pool, optimizer, tmp_path):
    """Let libraries take the memory that they keep."""
    spec = spec_for(2 * MIB, optimizer, checkpoint_folder=str(tmp_path / "small"), milestones=(1,))
    path = pool.run(4, train, spec)[0].checkpoint
    pool.run(4, train, replace(spec, resume_from=path))
    pool.run(1, export, path, tmp_path / "small.pt")


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_four_ranks_train_save_resume_and_export_what_none_of_them_could_hold(fresh, tmp_path, optimizer):
    """Nor is a model built whole, or a state gathered on one rank, in so much memory."""
    warmed_up(fresh, optimizer, tmp_path)
    saving = replace(spec_for(LIMIT, optimizer), checkpoint_folder=str(tmp_path), milestones=(1, 2))
    before = fresh.run(4, limited, LIMIT, train, saving, 1)
    assert_good(before)
    after = fresh.run(4, limited, LIMIT, train, replace(saving, resume_from=before[0].checkpoint, attempt=2))
    assert_good(after)
    last = after[0].checkpoint
    assert_good(fresh.run(1, limited, LIMIT, export, last, tmp_path / "out.pt"))
    check_checkpoint(last)
    weights, exported = read_checkpoint(last)["model"], load_exported(tmp_path / "out.pt")["weights"]
    assert exported.keys() == weights.keys()
    assert all(torch.equal(value, exported[name]) for name, value in weights.items())
    held = sum(value.numel() * value.element_size() for value in weights.values())
    assert held * COPIES[optimizer] == pytest.approx(3 * LIMIT, rel=0.03)
    assert not list(tmp_path.glob(".*"))
    whole = fresh.run(4, limited, LIMIT, train, spec_for(LIMIT, "sgd", training={"init_by_module": False}))
    (of_one,) = fresh.run(4, limited_on_rank_0, LIMIT, gathered, spec_for(LIMIT, "adamw"), first=1)
    assert all(isinstance(answer, OutOfMemoryError) for answer in (*whole, of_one)), (whole, of_one)
