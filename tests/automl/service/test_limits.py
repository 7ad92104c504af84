"""Work that a request may cause has a limit before it is done, and one user's work leaves room for others'."""

import gzip
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from automl.service.http_errors import BusyError, TooLargeError
from automl.service.limits import CALLER, EXPANSION, SPEC_CHARS, Turns, check_expanded, spec_within
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from studies.spec.yaml_reader import MOST_NESTED, read_yaml
from tests.support import optional
from tests.support.service import TestedService, bearer, spec_of, with_policy


@pytest.fixture
def client(service: TestedService) -> Iterator[TestClient]:
    with_policy(service, uploads=service.folder / "uploads", upload_bytes=2**20)
    with TestClient(service.app(), headers=bearer(service.token())) as one:
        yield one


@pytest.mark.parametrize("section", ["", "budget"])
def test_unknown_keys_are_counted_in_time_that_grows_with_their_number(section: str) -> None:
    many = {f"key{number}": 1 for number in range(20_000)}
    spec = spec_of("a") | ({section: many} if section else many)
    began = time.process_time()
    with pytest.raises(SpecError, match=r"found the unknown key .* \(and 19999 more problems\)"):
        parse_spec(spec, "spec")
    assert time.process_time() - began < 4.0


@pytest.mark.parametrize("spec", [
    {"a": "x" * SPEC_CHARS}, "a: " + "x" * SPEC_CHARS,
    {"a": [1] * SPEC_CHARS}, {f"k{n}": 1 for n in range(SPEC_CHARS // 2)},
    "a: " + "[" * 30_000, "a: " + "[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1), "? " * 30_000,
])  # fmt: skip
def test_what_is_too_long_or_too_deep_for_a_spec_is_refused_before_it_is_checked(service, client, spec):
    answer = client.post("/api/v1/studies", json={"spec": spec})
    assert answer.status_code in {413, 422}, answer.text
    with pytest.raises(SpecError, match=r"more than 65,536 characters|nested|not YAML"):
        spec_within(spec, "spec")
    assert service.queue.jobs() == []


def test_yaml_that_is_too_deep_or_would_end_the_process_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MOST_NESTED + 1):
        deep = {"a": deep}
    with pytest.raises(SpecError, match="nested more than"):
        spec_within(deep, "spec")
    assert spec_within(deep["a"]["a"], "spec") == deep["a"]["a"]
    # libyaml's nodes are made by recursion without a limit: 30,000 brackets are a segmentation fault.
    for text in ("[" * 30_000, "- " * 30_000, "{a: " * 30_000, "? " * 30_000):
        with pytest.raises(SpecError, match="values nested too deeply"):
            read_yaml(text, source="spec")


@pytest.mark.medium
def test_an_upload_that_expands_too_far_is_refused_and_not_kept(service: TestedService, client: TestClient) -> None:
    parquet = optional.module("pyarrow.parquet")
    table = optional.module("pyarrow").table({f"c{n}": [0.0] * 50_000 for n in range(20)})
    parquet.write_table(table, service.folder / "zeros", compression="zstd")
    zeros = (service.folder / "zeros").read_bytes()
    assert len(zeros) < 2**17
    fits, more = (gzip.compress(bytes(EXPANSION * 2**20 + one)) for one in (0, 1))
    asked = {"a.csv.gz": (fits, 201), "b.csv.gz": (more, 413), "b.GZ": (b"x", 422),
             "b.parquet": (zeros, 413), "c.parquet": (b"PAR1" + b"\xff" * 99 + b"PAR1", 422), "d.csv": (b"a", 201),
             "e.csv.gz": (fits[:-9], 422)}  # fmt: skip
    for name, (content, status) in asked.items():
        answer = client.post(f"/api/v1/uploads?name={name}", content=content)
        assert answer.status_code == status, (name, answer.text)
    kept = {path.name for path in (service.folder / "uploads" / "vision").iterdir()}
    assert kept == {"a.csv.gz", "d.csv"}


def test_strings_of_a_parquet_dictionary_count_as_often_as_they_are_used(tmp_path: Path) -> None:
    arrow, parquet = optional.module("pyarrow"), optional.module("pyarrow.parquet")
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 5000, arrow.int32()), ["x" * 10_000])
    parquet.write_table(arrow.table({"a": column}), tmp_path / "a")
    assert (tmp_path / "a").stat().st_size < 20_000
    with pytest.raises(TooLargeError, match=r"a\.parquet expands to more than the allowed 4.19 MB"):
        check_expanded(tmp_path / "a", "a.parquet", 2**20)


def test_one_user_waits_for_an_own_turn_and_holds_nobody_else_up() -> None:
    turns, over, begun = Turns("check", most=1, most_waiting=1), threading.Event(), threading.Event()

    def work(who: str) -> None:
        CALLER.set(who)
        with turns.turn():
            begun.set()
            over.wait(30.0)

    threads = [threading.Thread(target=work, args=("ann",)) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert begun.wait(10.0)
    while turns._here["ann"]._value:
        time.sleep(0.01)
    CALLER.set("ann")
    with pytest.raises(BusyError, match="2 of your requests run or wait"), turns.turn():
        pass
    for who in ("bob", ""):
        CALLER.set(who)
        with turns.turn():
            pass
    over.set()
    for thread in threads:
        thread.join()
    CALLER.set("ann")
    with turns.turn():
        pass
