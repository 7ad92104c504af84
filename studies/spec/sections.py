"""The sections of a spec. Error messages quote a field's description as its allowed values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, create_model, field_validator, model_serializer, model_validator

from search_spaces.messages import found, listed, nearest, shown
from search_spaces.parameters import LARGEST_INT, first_repeated
from studies.records.records import FINISH, MOST_PRICE, MOST_USD, Constraint, Direction, Objective
from studies.search.pruners.by_name import BUILT_IN, options_with_defaults, unknown_option
from studies.search.user_objects import SearchError
from studies.spec.section import Section, check_json
from studies.spec.spec_errors import SpecValueError
from trainers.checkpoints.locations import ALLOWED_FOLDER, problem_of_folder
from trainers.trainer_options import TRAINER_PARAMETERS, training_keys

Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # above its first use, which pydantic resolves


class BaselineSpec(Section):
    """A baseline, to which models are compared: a trial of the study, or known values."""

    WITHOUT_NAME = ("name",)

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            *,
            params: Mapping[str, str | bool | int | float | None] | None = None,
            metrics: Mapping[str, float] | None = None,
        ) -> None: ...

    name: Annotated[str, Field(strict=True, min_length=1, max_length=100, description="a text of 1 to 100 characters")]
    params: Annotated[
        dict[str, str | bool | int | float | None] | None, Field(description="a mapping of parameters to values")
    ] = None
    metrics: Annotated[dict[str, Finite] | None, Field(description="a mapping of metrics to finite numbers")] = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> BaselineSpec:
        if bool(self.params) == bool(self.metrics):
            what = "both params and metrics" if self.params else "neither params nor metrics"
            raise SpecValueError(f"found {what}. Give exactly one of the two", ())
        return self

    @model_serializer
    def _as_mapping(self) -> dict[str, Any]:
        return {"name": self.name} | ({"params": self.params} if self.params else {"metrics": self.metrics})


def unknown_metrics(named: Sequence[BaselineSpec], metrics: Collection[str]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return path and problem of each baseline metric that the task does not measure."""
    return [
        (("baselines", index, "metrics", metric), found(metric, listed(metrics), nearest(metric, list(metrics))))
        for index, one in enumerate(named)
        for metric in one.metrics or ()
        if metric not in metrics
    ]


MOST = MOST_USD
"""Largest amount: as dollars it fits 64 bits in nano-dollars, and clocks can wait this many hours."""
MOST_SLOTS = 2**16  # largest number of slots: a check lists the world sizes that fit them

Positive = Annotated[float, Field(strict=True, gt=0, le=MOST, description="a finite number above 0 and up to 1e9")]
PositiveOrNull = Annotated[Positive | None, Field(description="a finite number above 0 and up to 1e9, or null")]
Price = Annotated[float, Field(strict=True, ge=0, le=MOST_PRICE)]
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INT)]

SAMPLERS = ("auto", "random", "tpe", "nsga2", "gp", "cokriging")
PRUNERS = ("auto", *BUILT_IN)

ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""`module:Object`, with packages and attributes of any depth."""


def _name_or_entry_point(name: str, known: tuple[str, ...]) -> str:
    if name not in known and not ENTRY_POINT.fullmatch(name):
        raise SpecValueError(found(name, f"{', '.join(known)} or module:Object", nearest(name, known)))
    return name


class ObjectiveSpec(Section):
    """A metric to optimise, and its better direction."""

    WITHOUT_NAME = ("metric", "direction")

    if TYPE_CHECKING:

        def __init__(self, metric: str, direction: Direction = "minimize") -> None: ...

    metric: Annotated[str, Field(strict=True, min_length=1, description="the name of a metric")]
    direction: Annotated[Direction, Field(description="minimize, maximize")] = "minimize"

    def record(self) -> Objective:
        """Return the objective as a record."""
        return Objective(metric=self.metric, direction=self.direction)


class ConstraintSpec(Section):
    """Bounds of a metric; a value equal to a bound is allowed."""

    WITHOUT_NAME = ("metric",)

    if TYPE_CHECKING:

        def __init__(self, metric: str, *, min: float | None = None, max: float | None = None) -> None: ...  # noqa: A002

    metric: Annotated[str, Field(strict=True, min_length=1, description="the name of a metric")]
    min: Annotated[Finite | None, Field(description="a finite number, or null")] = None
    max: Annotated[Finite | None, Field(description="a finite number, or null")] = None

    @model_validator(mode="after")
    def _some_room(self) -> ConstraintSpec:
        if self.min is None and self.max is None:
            raise SpecValueError("found neither min nor max. Set at least one of them to a finite number")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise SpecValueError(found(self.min, f"a number below max, {shown(self.max)}"), ("min",))
        return self

    @model_serializer
    def _as_mapping(self) -> dict[str, object]:
        bounds = {"min": self.min, "max": self.max}
        return {"metric": self.metric} | {side: bound for side, bound in bounds.items() if bound is not None}

    def record(self) -> Constraint:
        """Return the constraint as a record."""
        return Constraint(metric=self.metric, min=self.min, max=self.max)


class _EpochsSpec(Section):
    epochs: Annotated[Count, Field(description="a whole number of at least 1")] = 20


_TRAINING_OPTIONS: dict[str, Any] = dict(training_keys())


class TrainingSpec(create_model("_OptionsSpec", __base__=_EpochsSpec, **_TRAINING_OPTIONS)):  # type: ignore[misc]
    """Training options of every trial (`trainers.trainer_options.TrainerOptions`).

    Each key except `epochs` may be a parameter of the space instead.
    """

    ADVICE: ClassVar[Mapping[str, str]] = {
        name: f"put it in `space`, as a range, choices or one value (space.{name})"
        for name, parameter in TRAINER_PARAMETERS.items()
        if parameter.only_in_space
    }

    @field_validator("*", mode="before")
    @classmethod
    def _known_to_trainer(cls, value: object, info: ValidationInfo) -> object:
        taker = TRAINER_PARAMETERS.get(str(info.field_name))  # None for `epochs`
        if taker is not None and (problem := taker.problem(value)) is not None:
            raise SpecValueError(problem)
        return value


class PrunerSpec(Section):
    """The pruner, built in or "module:Object", with its options."""

    WITHOUT_NAME = ("name",)

    if TYPE_CHECKING:

        def __init__(self, name: str = "auto", **options: object) -> None: ...

    name: Annotated[str, Field(strict=True, description=f"{', '.join(PRUNERS)} or module:Object")] = "auto"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, given: object) -> object:
        if not isinstance(given, Mapping) or not isinstance(given.get("name", "auto"), str):
            return given
        name = given.get("name", "auto")
        options = {str(key): value for key, value in given.items() if key != "name"}
        if name == "auto" and options:
            first = next(iter(options))
            raise SpecValueError(unknown_option(name, first), (first,))
        if name not in BUILT_IN:
            return {"name": name, "options": options}
        try:
            return {"name": name, "options": options_with_defaults(name, options)}
        except SearchError as error:
            raise SpecValueError(error.problem, error.path[1:]) from None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return _name_or_entry_point(name, PRUNERS)

    @field_validator("options")
    @classmethod
    def _plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_json(options)
        return options

    @model_serializer
    def _as_mapping(self) -> dict[str, object]:
        return {"name": self.name, **self.options}

    def given(self) -> dict[str, object]:
        """Return name and options in one mapping."""
        return self._as_mapping()


class AdvisorSpec(Section):
    """A program that reads the trials so far and prints proposals (`studies.search.samplers.advisor`)."""

    command: Annotated[
        tuple[Annotated[str, Field(strict=True, min_length=1)], ...],
        Field(min_length=1, description="a list of texts, such as [python, advise.py]"),
    ]
    seconds: Annotated[
        float, Field(strict=True, gt=0, le=86400, description="a number of seconds above 0 and up to 86400")
    ] = 30.0


class SearchSpec(Section):
    """The sampler, which suggests configurations, and the pruner, which stops or pauses their trials.

    Attributes:
        first_trials: Parameters of the first trials; missing parameters are drawn at random.
        learn_space: Whether trials may request parameters outside the space.
        advisor: Program that proposes configurations; the sampler `cokriging` compares them with its own.
    """

    sampler: Annotated[str, Field(strict=True, description=f"{', '.join(SAMPLERS)} or module:Object")] = "auto"
    pruner: Annotated[
        PrunerSpec, Field(description=f"{', '.join(PRUNERS)}, module:Object, or a mapping with name and options")
    ] = PrunerSpec()
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32, description="a whole number from 0 to 4294967295")] = 0
    from_studies: Annotated[
        tuple[Annotated[str, Field(strict=True, min_length=1)], ...],
        Field(description="a list of studies: names in this store, or URL#NAME in another store or in Optuna's"),
    ] = ()

    first_trials: Annotated[
        tuple[dict[str, str | bool | int | float | None], ...],
        Field(description="a list of mappings of parameters to values"),
    ] = ()
    learn_space: Annotated[bool, Field(strict=True, description="true or false")] = False
    advisor: Annotated[
        AdvisorSpec | None, Field(description="a mapping such as {command: [python, advise.py], seconds: 30}, or null")
    ] = None

    @model_validator(mode="after")
    def _can_value_proposals(self) -> SearchSpec:
        if self.advisor is not None and (sampler := self.chosen.sampler) != "cokriging":
            problem = f"the sampler {sampler} cannot compare proposals. Set sampler to cokriging, or remove advisor"
            raise SpecValueError(problem, ("advisor",))
        return self

    @model_validator(mode="after")
    def _learns_what_can_be_learnt(self) -> SearchSpec:
        if self.learn_space and (problem := self.problem_of_learning()) is not None:
            path, text = problem
            raise SpecValueError(text, path)
        return self

    def problem_of_learning(self) -> tuple[tuple[str, ...], str] | None:
        """Return path and problem of the first key that `learn_space` forbids, or None."""
        with_learning = "while the space is learnt as trials run"
        for key, name, known in (("sampler", self.sampler, SAMPLERS), ("pruner", self.pruner.name, PRUNERS)):
            if name in {"cokriging", "break_even"}:
                others = ", ".join(one for one in known if one != name)
                return (key,), f"found {name!r}, allowed {with_learning}: {others} or module:Object"
        if self.from_studies:
            return ("from_studies",), f"found {shown(self.from_studies[0])}, allowed {with_learning}: no studies"
        return None

    @field_validator("from_studies")
    @classmethod
    def _studies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(names):
            if "://" in name and not name.rpartition("#")[2 if "#" in name else 0]:
                raise SpecValueError(found(name, "a URL that ends in #NAME, the study's name"), (index,))
        if (repeated := first_repeated(names)) is not None:
            raise SpecValueError(f"found {shown(names[repeated])} twice. Name each study once", (repeated,))
        return names

    @field_validator("sampler")
    @classmethod
    def _known(cls, name: str) -> str:
        return _name_or_entry_point(name, SAMPLERS)

    @field_validator("pruner", mode="before")
    @classmethod
    def _from_name(cls, pruner: object) -> object:
        return {"name": pruner} if isinstance(pruner, str) else pruner

    @property
    def chosen(self) -> SearchSpec:
        """The section with `auto` replaced: by `cokriging` and `break_even` together, else by `tpe` and `mo_asha`."""
        is_ours = self.sampler in {"auto", "cokriging"} and self.pruner.name in {"auto", "break_even"}
        of_ours = is_ours and not self.learn_space
        sampler = ("cokriging" if of_ours else "tpe") if self.sampler == "auto" else self.sampler
        name = "break_even" if of_ours else "mo_asha"
        pruner = PrunerSpec(name=name) if self.pruner.name == "auto" else self.pruner
        return self.model_copy(update={"sampler": sampler, "pruner": pruner})


class BudgetSpec(Section):
    """Limits of a study, which ends when it reaches the first of them; null is no limit.

    Attributes:
        usd: Largest sum of all charges in dollars.
        least_percent_per_10_usd: Percent of hypervolume; the study ends if ten more dollars would add less.
        finish: Share of slot time reserved to train the best trials to their last epoch.
    """

    usd: PositiveOrNull = 1.0
    hours: PositiveOrNull = 1.0
    trials: Annotated[Count | None, Field(description="a whole number of at least 1, or null")] = 200
    usd_per_trial: PositiveOrNull = None
    hours_per_trial: PositiveOrNull = None
    least_percent_per_10_usd: PositiveOrNull = None
    finish: Annotated[float, Field(strict=True, ge=0.0, le=0.5, description="a number from 0 to 0.5")] = FINISH

    @property
    def is_of_dollars_alone(self) -> bool:
        """Return whether dollars are the only limit, which free slots never reach."""
        return self.hours is None and self.trials is None

    @model_validator(mode="after")
    def _some_limit(self) -> BudgetSpec:
        if self.usd is None and self.hours is None and self.trials is None:
            raise SpecValueError("found null for usd, hours and trials. Set at least one of them to a number")
        return self


class ResourcesSpec(Section):
    """The devices on which the trials run.

    Attributes:
        device: Kind of device; auto takes a GPU if there is one.
        slots: Number of slots in the pool; auto takes all devices.
        price_per_slot_hour: Price of one slot in dollars per hour; auto looks the device up.
        backend: Backend of process groups; auto is NCCL between GPUs and Gloo between CPUs.
        environment: Environment variables for ranks on other machines, besides NCCL_*, GLOO_*, HF_* and CUDA_*.
        on_lost_node: Whether a trial wider than the remaining devices waits, or continues with fewer ranks.
        ray_address: Address of the cluster to join; null starts one here.
        ray_temp_folder: Folder of Ray's temporary files; null leaves it to Ray.
        autoscale: Whether the cluster's autoscaler adds and removes slots, up to the number of slots.
    """

    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto, cpu, cuda")] = "auto"
    cpus_per_rank: Annotated[Count, Field(description="a whole number of at least 1")] = 1
    slots: Annotated[
        Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MOST_SLOTS)],
        Field(description="auto or a whole number of at least 1 and up to 1e9"),
    ] = "auto"
    price_per_slot_hour: Annotated[
        Literal["auto"] | Price, Field(description="auto or a finite number of at least 0 and up to 1e6")
    ] = "auto"
    backend: Annotated[Literal["auto", "nccl", "gloo"], Field(description="auto, nccl, gloo")] = "auto"
    environment: Annotated[
        tuple[Annotated[str, Field(strict=True, min_length=1)], ...], Field(description="a list of names")
    ] = ()
    on_lost_node: Annotated[Literal["wait", "shrink"], Field(description="wait, shrink")] = "wait"
    ray_address: Annotated[
        Annotated[str, Field(strict=True, min_length=1)] | None, Field(description="an address, or null")
    ] = None
    ray_temp_folder: Annotated[
        Annotated[str, Field(strict=True, min_length=1)] | None, Field(description="a folder, or null")
    ] = None
    autoscale: Annotated[bool, Field(strict=True, description="true or false")] = False

    @model_validator(mode="after")
    def _autoscaler_knows_what_to_bring(self) -> ResourcesSpec:
        if not self.autoscale:
            return self
        # The autoscaler has not added nodes yet, so their kind and number cannot be looked up.
        missing = [
            words
            for is_missing, words in (
                (self.ray_address is None, "ray_address (of a cluster with an autoscaler)"),
                (self.slots == "auto", "slots as a number"),
                (self.device == "auto", "device as cpu or cuda"),
            )
            if is_missing
        ]
        if missing:
            raise SpecValueError(f"found true, which also needs {' and '.join(missing)}. Add them", ("autoscale",))
        return self


class FaultsSpec(Section):
    """Limits after which a trial counts as hanging or lost.

    Attributes:
        start_seconds: Longest silence of ranks while loading, compiling or doing anything else for the first time.
        silence_seconds: Longest silence of ranks at other times.
        errors_at_start: Trials that may fail by user errors before a trial trains an epoch; null is no limit.
        group_seconds: Longest wait for other ranks when a process group forms, and in a collective operation.
    """

    start_seconds: Positive = 1800.0
    silence_seconds: Positive = 300.0
    attempts: Annotated[Count, Field(description="a whole number of at least 1")] = 3
    errors_at_start: Annotated[Count | None, Field(description="a whole number of at least 1, or null")] = 8
    group_seconds: Positive = 600.0


class CheckpointsSpec(Section):
    """Place, frequency and number of checkpoints.

    Attributes:
        every_seconds: Least seconds between checkpoints for resuming, also within long epochs.
        every_epochs: Epochs between models that compete for the archive, besides the epochs that the pruner chooses.
        most_paused: Number of paused trials beyond which the least valuable is pruned; null is no limit.
        max_gib: GiB of checkpoints beyond which the least valuable paused trials are pruned; null is no limit.
    """

    folder: Annotated[str, Field(strict=True, min_length=1, description=ALLOWED_FOLDER)] = "./artifacts"
    every_seconds: Positive = 60.0
    every_epochs: Annotated[Count | None, Field(description="a whole number of at least 1, or null")] = None
    most_paused: Annotated[Count | None, Field(description="a whole number of at least 1, or null")] = None
    max_gib: PositiveOrNull = None

    @field_validator("folder")
    @classmethod
    def _is_a_place(cls, folder: str) -> str:
        if problem := problem_of_folder(folder):
            raise SpecValueError(problem)
        return folder
