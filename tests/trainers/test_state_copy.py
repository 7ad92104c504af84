"""Copies of a state: equal to it, of its form, and untouched by what is trained afterwards."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from trainers.checkpoints.state_copy import StateCopies
from trainers.checkpoints.stored_tensors import Piece
from trainers.protocol import LostError
from trainers.ranks.gather_over_store import StoreGather
from trainers.ranks.process_group import Group


def content():
    weights = torch.arange(24.0).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    tied = torch.ones(3, requires_grad=True)
    model = nn.BatchNorm1d(3)
    return {
        "weights": weights, "tied": {"one": tied, "other": tied.detach().requires_grad_()},
        "piece": Piece(rows=torch.zeros(2, 2), first=2, shape=(4, 2)), "model": model.state_dict(),
        "parameter": nn.Parameter(torch.ones(2)), "plain": [1, 2.5, "text", None, (True, b"bytes"), {3}],
        "generator": random.getstate(), "empty": torch.empty(0, 3), "row": torch.arange(1000.0)[3:5],
        "number": torch.tensor(7),
    }  # fmt: skip


def test_a_copy_is_equal_has_the_same_form_and_does_not_change_with_the_state() -> None:
    given = content()
    copied = StateCopies().of(given)
    assert copied.keys() == given.keys()
    assert torch.equal(copied["weights"], given["weights"])
    assert copied["weights"].stride() == given["weights"].stride()
    assert copied["tied"]["one"] is copied["tied"]["other"], "a file would have it twice"
    assert copied["tied"]["one"].requires_grad
    assert (copied["piece"].first, copied["piece"].shape) == (2, (4, 2))
    assert type(copied["model"]) is type(given["model"])
    assert copied["model"]._metadata == given["model"]._metadata
    assert isinstance(copied["parameter"], nn.Parameter)
    assert copied["plain"] == given["plain"]
    assert copied["generator"] == given["generator"]
    assert copied["empty"].shape == (0, 3)
    assert copied["row"].tolist() == [3.0, 4.0]
    assert copied["row"].untyped_storage().nbytes() < 100, "of a large memory only the part that is meant is copied"
    assert copied["number"] == 7
    file = io.BytesIO()
    torch.save({name: copied[name] for name in copied if name not in {"piece", "plain"}}, file)
    file.seek(0)
    torch.load(file, weights_only=True)
    given = content()
    copied = StateCopies().of(given)
    with torch.no_grad():
        given["weights"].zero_()
        given["tied"]["one"].zero_()
        given["piece"].rows.fill_(9.0)
    given["plain"].append(1)
    given["tied"]["new"] = 1
    assert copied["weights"].sum() == 276.0
    assert copied["tied"]["one"].sum() == 3.0
    assert copied["piece"].rows.sum() == 0.0
    assert len(copied["plain"]) == 6
    assert "new" not in copied["tied"]


def test_the_memory_of_the_last_copy_serves_again() -> None:
    copies = StateCopies()
    state = {"a": torch.ones(1000), "b": torch.zeros(1000)}
    first = {value.data_ptr() for value in copies.of(state).values()}
    state["a"] += 1.0
    again = copies.of(state)
    assert {value.data_ptr() for value in again.values()} == first
    assert again["a"].sum() == 2000.0
    smaller = copies.of({"a": state["a"]})
    assert copies.of({"b": state["b"]})["b"].data_ptr() == smaller["a"].data_ptr()


def test_ranks_gather_over_a_store_and_one_that_tells_nothing_is_named() -> None:
    store = PrefixStore("some group", HashStore())
    both = threading.Barrier(3)

    def rank(number: int) -> list[list[object]]:
        gather = StoreGather("epoch-0001", Group(rank=number, world_size=3), store)
        told = [gather((number, "first")), gather({"second": number})]
        both.wait(30)
        return told

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(rank, range(3)))
    expected = [[(number, "first") for number in range(3)], [{"second": number} for number in range(3)]]
    assert answers == [expected] * 3
    assert store.num_keys() == 0
    gather = StoreGather("epoch-0001", Group(rank=0, world_size=3), HashStore(), gather_seconds=0.1)
    with pytest.raises(LostError, match=r"no word of ranks 1, 2 on epoch-0001 within 0\.1 s"):
        gather(0)
