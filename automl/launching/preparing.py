"""From a spec as written to a study that can be launched: what can be wrong is found here, before a write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.outputs import check_outputs, with_absolute_paths
from automl.launching.quickstart import absolute_paths
from search_spaces.space import Space
from studies.control.assembly import PoolSpec, assemble
from studies.gangs.available_slots import AvailableSlots, find_slots
from studies.gangs.protocol import PoolError
from studies.money.prices import Price, price_of
from studies.search.model.transfer import EarlierStudy
from studies.search.named_objects import make_importable
from studies.search.policy import Policy
from studies.spec.checks import check_against_task, check_options, check_world_sizes, with_world_sizes_that_fit
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec, load_spec, parse_spec
from studies.storage.engine import StoreError, parse_url
from trainers.protocol import TaskError
from trainers.task import declared_metrics, load_task, parameters_of, space_of

PROBE = (sys.executable, "-P", "-m", "trainers.probe")
"""The command that answers questions about a task, in a process of its own."""
PROBE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A study that can be launched.

    Attributes:
        spec: With its space filled in and its URLs absolute.
        source: What messages call the spec.
        base_folder: Where relative paths and the user's own task start.
        place: Where trials train.
        price: Of one slot, with its source.
        warnings: One line each.
        earlier: Studies that it learns from.
    """

    spec: StudySpec
    source: str
    base_folder: Path
    place: PoolSpec
    places: AvailableSlots
    price: Price
    warnings: tuple[str, ...] = ()
    earlier: tuple[EarlierStudy, ...] = ()


def read_spec(path: str | Path, overrides: Sequence[str] = (), store: str | None = None) -> StudySpec:
    """A spec from its file; the command line beats the environment (AUTOML_STORE), which beats the file.

    Raises:
        SpecError: The spec is wrong.
    """
    given = os.environ.get("AUTOML_STORE")
    ahead = [f"store={json.dumps(given)}"] if given else []
    behind = [f"store={json.dumps(store)}"] if store else []
    return load_spec(path, [*ahead, *overrides, *behind])


def prepare(spec: StudySpec, *, source: str, base_folder: Path) -> Prepared:
    """Check a spec against its task, its sampler and the machine.

    Raises:
        SpecError: Whatever is wrong, in one line.
    """
    folder = base_folder.absolute()
    _check_store_url(spec, source)
    spec = with_absolute_paths(spec, source, Path.cwd())
    check_outputs(spec, source)
    options = absolute_paths(spec.task, spec.task_options, folder)
    spec = spec.model_copy(update={"task_options": options})
    about, is_tasks_space = _about_task(spec, source, folder), spec.space is None
    spec = check_against_task(spec, about["parameters"], about["metrics"], about["space"], source)
    try:
        places = find_slots(spec.resources.device, spec.resources.cpus_per_rank, spec.resources.ray_address)
    except PoolError as error:
        raise SpecError(source, (), str(error)) from None
    check_options(spec, places.device, source)
    slots = places.slots if spec.resources.slots == "auto" else spec.resources.slots
    _check_gpus(spec, places, slots, source)
    spec = with_world_sizes_that_fit(spec, slots) if is_tasks_space else spec
    check_world_sizes(spec, slots, source)
    price = _price(spec, places)
    _check_is_limited(spec, price, source)
    place = PoolSpec(device=places.device, slots=slots, usd_per_slot_hour=price.usd_per_slot_hour)
    rungs = _check_search(spec, source, folder, place)
    return Prepared(
        spec=spec,
        source=source,
        base_folder=folder,
        place=place,
        places=places,
        price=price,
        warnings=(*_warnings(spec, places, slots), *_warnings_of_search(spec, rungs)),
    )


def _check_store_url(spec: StudySpec, source: str) -> None:
    try:
        parse_url(spec.store)
    except StoreError as error:
        raise SpecError(source, (), str(error)) from None


def parse(spec: StudySpec | Mapping[str, Any], source: str = "spec") -> StudySpec:
    """A spec from Python: one that is parsed already, or a mapping."""
    return spec if isinstance(spec, StudySpec) else parse_spec(spec, source)


def _about_task(spec: StudySpec, source: str, folder: Path) -> dict[str, Any]:
    """What the task takes and gives. A built-in one says so without torch; one's own is tried out, in a process."""
    try:
        if ":" not in spec.task:
            task = load_task(spec.task, spec.task_options)
            metrics = declared_metrics(task)
            if metrics is not None:
                space = space_of(task)
                return {"parameters": parameters_of(task), "metrics": metrics, "space": space or Space({})}
        return _probe(spec, source, folder)
    except TaskError as error:
        raise SpecError(source, ("task",), " ".join(str(error).split())) from None


def _probe(spec: StudySpec, source: str, folder: Path) -> dict[str, Any]:
    question = {
        "task": spec.task,
        "task_options": dict(spec.task_options),
        "python_path": [str(folder)],
        "params": _example(spec),
    }
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            PROBE, input=json.dumps(question), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"found {spec.task!r}, which had given no answer after {PROBE_SECONDS:g} s when it was tried out"
        raise SpecError(source, ("task",), problem) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise SpecError(source, ("task",), f"found {spec.task!r}, which {_ending(done)}") from None
    if answer["error"]:
        raise SpecError(source, ("task",), answer["error"])
    space = Space.from_dict(answer["space"]) if answer["space"] else Space({})
    return {"parameters": answer["parameters"], "metrics": answer["metrics"], "space": space}


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    """How a task ended the process in which it was tried out, and what it said last."""
    code = done.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    last = done.stderr.strip().splitlines()[-1:]
    return ": ".join([f"{how} while it was tried out", *last])


def _example(spec: StudySpec) -> dict[str, Any] | None:
    """One configuration of the spec's own space, to try the task out with."""
    if spec.space is None:
        return None
    from search_spaces.drawing import example_params

    return example_params(spec.space)


def _check_search(spec: StudySpec, source: str, folder: Path, place: PoolSpec) -> tuple[int, ...]:
    """Build what a controller builds, and ask it for a first trial: no study should exist that cannot even do that.

    Returns:
        The rungs of the pruner.
    """
    name = spec.search.sampler
    is_own = ":" in name
    if is_own or ":" in spec.search.pruner.name:
        make_importable(folder)
    assembled = assemble(spec, place, source=source)
    rungs = _rungs(spec, source, assembled.policy)
    try:
        assembled.suggester.suggest(0, ())
    except (Exception, SystemExit) as error:
        if not is_own:
            raise
        problem = f"{name!r} cannot suggest a trial ({type(error).__name__}: {error})"
        raise SpecError(source, ("search", "sampler"), problem) from None
    return rungs


def _rungs(spec: StudySpec, source: str, policy: Policy) -> tuple[int, ...]:
    """The rungs of the pruner, which the user's own may get wrong."""
    name, epochs = spec.search.pruner.name, spec.training.epochs
    problem = None
    try:
        rungs = tuple(policy.pruner.rungs(epochs))
    except (Exception, SystemExit) as error:
        if ":" not in name:
            raise
        problem = f"{name!r} cannot name its rungs ({type(error).__name__}: {error})"
    else:
        if not all(type(rung) is int and 0 < rung < epochs for rung in rungs) or list(rungs) != sorted(set(rungs)):
            problem = f"{name!r} gives the rungs {rungs}, allowed: whole numbers from 1 to {epochs - 1}, ascending"
    if problem is not None:
        raise SpecError(source, ("search", "pruner"), " ".join(problem.split()))
    return rungs


def _check_gpus(spec: StudySpec, places: AvailableSlots, slots: int, source: str) -> None:
    if (places.device == "cuda" or spec.resources.ray_address is not None) and slots > places.slots:
        problem = f"found {slots}, allowed: at most {places.slots}, so many are there"
        raise SpecError(source, ("resources", "slots"), problem)


def _check_is_limited(spec: StudySpec, price: Price, source: str) -> None:
    """Dollars are no limit where slots are free."""
    budget = spec.budget
    if price.usd_per_slot_hour == 0 and budget.hours is None and budget.trials is None:
        allowed = "budget.hours or budget.trials as well"
        problem = f"found {budget.usd:g}, which slots of $0 an hour never spend; allowed: {allowed}"
        raise SpecError(source, ("budget", "usd"), problem)


def _price(spec: StudySpec, places: AvailableSlots) -> Price:
    given = spec.resources.price_per_slot_hour
    if given == "auto":
        return price_of(places.device, places.device_name, spec.resources.cpus_per_rank)
    return Price(usd_per_slot_hour=float(given), source="resources.price_per_slot_hour")


def _warnings(spec: StudySpec, places: AvailableSlots, slots: int) -> tuple[str, ...]:
    if places.device == "cpu" and slots > places.slots:
        needed, there = slots * spec.resources.cpus_per_rank, places.slots * spec.resources.cpus_per_rank
        return (f"{slots} slots want {needed} CPUs, this machine has {there}: trials will be slower",)
    return ()


def _warnings_of_search(spec: StudySpec, rungs: Sequence[int]) -> tuple[str, ...]:
    """What works, and is hardly what anybody means."""
    found_odd = []
    if spec.space is not None and not len(spec.space):
        found_odd.append("space: it has no parameter, so all trials are alike")
    if spec.search.pruner.name not in {"none", "auto"} and not rungs:
        epochs = spec.training.epochs
        found_odd.append(
            f"search.pruner: {spec.search.pruner.name} has no rung before epoch {epochs}, and prunes nothing"
        )
    return tuple(found_odd)
