"""Models that are built without memory and get their first values block by block."""

import pytest
import torch
from torch import nn

from tests.support.trainer_pool import run_trial, spec_of
from trainers.model.init_by_module import ModuleInit
from trainers.model.sharding import units_of
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group


class Of:
    """A task of one model."""

    def __init__(self, make):
        self.make = make

    def model(self, params):
        return self.make()


def built(make, seed=0):
    init = ModuleInit(Of(make), {}, seed)
    assert all(parameter.is_meta for parameter in init.module.parameters())
    for unit in units_of(init.module):
        init.fill(unit)
    return init.module


def initial(group, spec):
    """The weights before the first step."""
    return run_trial(group, spec, until=0)["weights"]


@pytest.mark.parametrize("kind", ["blocks", "norms"])
def test_first_weights_depend_neither_on_ranks_nor_on_sharding(ranks, kind):
    def spec(world_size, **training):
        return spec_of(world_size, options={"kind": kind}, training={"init_by_module": True, **training})

    alone = initial(Group(), spec(1))
    for world_size, shard in ((2, "none"), (3, "full")):
        for found in ranks.run(world_size, initial, spec(world_size, shard=shard)):
            assert all(torch.equal(value, found[name]) for name, value in alone.items())
    whole = initial(Group(), spec(1, init_by_module=False))
    assert not all(torch.equal(value, whole[name]) for name, value in alone.items())


def test_they_are_drawn_as_a_model_that_is_built_whole_draws_them(ranks):
    """Each module has the distribution of its own reset, and no two modules have the same numbers."""
    module = built(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]))
    weights = [part.weight.detach() for part in module.modules() if isinstance(part, nn.Linear)]
    for weight in weights:
        assert weight.abs().max() <= 1 / 8
        assert float(weight.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert len({float(weight.sum()) for weight in weights}) == 4
    again = built(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]), seed=1)
    assert not torch.equal(again[0][0].weight, module[0][0].weight)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        vars(self.head.weight)["is_marked"] = True


def test_common_parameters_stay_one_buffers_are_built_and_torchs_layers_are_built_by_module():
    module = built(Tied)
    assert module.head.weight is module.embedding.weight
    assert vars(module.head.weight) == {"is_marked": True}
    module, again = built(Masked), built(Masked)
    assert torch.equal(module.mask, torch.ones(4, 4).tril())
    assert torch.equal(module.table, again.table)
    module = built(Shared)
    assert module.one.weight is module.other.weight
    module = built(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    assert module.self_attn.out_proj.bias.eq(0).all(), "the attention's own reset comes after its child's"
    assert module.norm1.weight.eq(1).all()
    norm = built(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GRU(4, 4)).double())[1]
    assert (norm.running_var.eq(1).all(), norm.num_batches_tracked, norm.weight.dtype) == (True, 0, torch.float64)


def applied():
    module = nn.Sequential(nn.Linear(4, 4))
    return module.apply(lambda part: nn.init.zeros_(part.weight) if isinstance(part, nn.Linear) else None)


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(scale)


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril())
        self.table = torch.rand(3)


class Assigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.inside.weight.data = torch.eye(4)


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.largest = self.inside.weight.max().item()


class OfAll(nn.Module):
    """A model whose own reset gives values to its blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4)) for _ in range(2)])
        self.reset_parameters()

    def reset_parameters(self):
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (applied, r"0\.weight gets values outside of the reset_parameters\(\) of Linear"),
        (lambda: Scaled(torch.full((3,), 0.1)), "scale gets values outside of .* of Scaled"),
        (Assigned, "cannot be built without values"),
        (Reads, "cannot be built without values"),
        (OfAll, r"blocks\.0\.0\.weight gets values from a reset_parameters\(\) outside of its block"),
        (lambda: nn.LazyLinear(3), "no shape before the first forward pass"),
    ],
)
def test_a_model_that_would_lose_values_is_refused(make, words):
    with pytest.raises(TaskError, match=words) as caught:
        ModuleInit(Of(make), {}, 0)
    assert "set init_by_module to false" in str(caught.value)
    assert "\n" not in str(caught.value)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        common = nn.Parameter(torch.empty(4, 4))
        self.one.weight = self.other.weight = common
        self.one.reset_parameters()
