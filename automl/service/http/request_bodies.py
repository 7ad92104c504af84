"""Request bodies, checked by pydantic and shown in the OpenAPI document."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from automl.exporting.exports import Target
from automl.training.request import training_spec
from studies.queueing.access_tokens import PROJECT_PATTERN, USER_PATTERN, Role
from studies.queueing.jobs import MOST_PRIORITY
from studies.records.records import MOST_USD
from studies.spec.spec_errors import SpecError, dotted

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._@-]+$")]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Point = Annotated[str, Field(min_length=1, max_length=40)]
Override = Annotated[str, Field(max_length=1000)]
Usd = Annotated[float, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]


class Body(BaseModel):
    """A request body that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"found {str(value).lower()}, but this key takes neither true nor false")
        return value


class SubmissionBody(Body):
    """A study to queue: its spec as a mapping or as YAML."""

    spec: dict[str, Any] | str = Field(description="The spec, as a mapping or as YAML.")
    code: Name | None = Field(None, description="The operator's code folder with the task and relative paths.")
    priority: Priority = Field(0, description="Jobs of higher priority start first, and displace lower jobs.")


class TrainingBody(Body):
    """A single training to queue, as a study of one trial."""

    name: Name = Field(description="Name of the training and of its study.")
    task: str = Field(min_length=1, max_length=300, description="A built-in task, or module:Class of allowed code.")
    task_options: dict[str, Any] = Field(default_factory=dict, description="Options of the task.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of trainer and task.")
    epochs: int = Field(10, ge=1, le=100_000, description="Number of epochs.")
    usd: Annotated[float, Field(gt=0, le=MOST_USD)] = Field(1.0, description="Largest cost in dollars.")
    seed: int = Field(0, ge=0, lt=2**32, description="Random seed of weights, shuffling and dropout.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Kind of device.")
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="Communication backend of the ranks.")
    group_seconds: Annotated[float, Field(gt=0, le=1e9)] = Field(600.0, description="Seconds to wait for ranks.")
    checkpoint_every: Annotated[float, Field(gt=0, le=1e9)] = Field(60.0, description="Seconds between checkpoints.")
    code: Name | None = Field(None, description="The operator's code folder with the task and relative paths.")
    priority: Priority = Field(0, description="Jobs of higher priority start first, and displace lower jobs.")

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec of a study that trains these parameters once."""
        given = self.model_dump(exclude={"code", "priority"})
        return training_spec(given.pop("name"), **given)


class ResumeBody(Body):
    """Changes of the spec of a resumed study."""

    overrides: list[Override] = Field(default_factory=list, max_length=20, description="PATH=VALUE each: budget.usd=5.")


class PriorityBody(Body):
    """A new priority."""

    priority: Priority


class EnqueueBody(Body):
    """Parameters of a trial that a study should train next."""

    params: dict[str, Any] = Field(max_length=200)


class ConfirmQuestion(Body):
    """Models of a study to train again, with new seeds."""

    points: list[Point] = Field(
        default_factory=list,
        max_length=20,
        description="2@6, 2, best, cheapest or knee; empty: the models to choose from.",
    )
    seeds: int = Field(3, ge=1, le=20, description="Trainings of each model.")


class ConfirmBody(ConfirmQuestion):
    """Models of a study to train again, with new seeds, and the budget."""

    usd: Annotated[float, Field(gt=0, le=MOST_USD)] = Field(
        description="Largest cost in dollars, on top of the study's budget."
    )


class ModelQuestion(Body):
    """A model of a study, and the format to export it in."""

    point: Point = Field("best", description="2@6, 2, best, cheapest or knee.")
    format: Target = Field("package", description="Form of the export; docker is the folder of a server's image.")
    model: Annotated[str, Field(max_length=100)] | None = Field(
        None, description="For a training function: the name of the model in trial.epochs."
    )
    licence: Annotated[str, Field(max_length=100)] | None = Field(None, description="Licence for the model card.")
    ensemble: bool = Field(False, description="All models that were kept when the trial was confirmed.")
    place: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Path where you will save it, for the example lines that load it; here by default."
    )


class LimitBody(Body):
    """Spending limit of a user or project over all studies. null removes the limit."""

    usd: Usd | None


class TokenBody(Body):
    """A token to create."""

    name: str = Field("", max_length=100, description="Purpose of the token.")
    user: Annotated[str, Field(pattern=f"^{USER_PATTERN}$")]
    project: Annotated[str, Field(pattern=f"^{PROJECT_PATTERN}$", description="Letters, digits, - and _.")]
    role: Role = "member"
    days: Annotated[float, Field(gt=0, le=3650)] | None = Field(90.0, description="Days of validity; null: no end.")


class RotationBody(Body):
    """A new token that replaces an existing token."""

    days: Annotated[float, Field(gt=0, le=3650)] | None = Field(90.0, description="Days of validity of the new token.")
    grace_hours: Annotated[float, Field(ge=0, le=720)] = Field(24.0, description="Hours until the old token ends.")


Filled = TypeVar("Filled", bound=Body)


def filled_in(kind: type[Filled], given: Mapping[str, Any]) -> Filled:
    """Return a request body from a page's form. Raises SpecError for a wrong field, without its value."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError("form", (dotted(first["loc"]),), first["msg"].removeprefix("Value error, ")) from None
