"""Section `baselines` of a spec: comparisons for the models of a study."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_serializer, model_validator

from search_spaces.messages import found, listed, nearest, shown
from studies.spec.section import Section
from studies.spec.spec_errors import SpecValueError

Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class BaselineSpec(Section):
    """A comparison for models: a trial of the study, or values known without any training."""

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


def name_problems(named: Sequence[BaselineSpec]) -> None:
    """Raise `SpecValueError` if two baselines share a name."""
    names = [one.name for one in named]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise SpecValueError(f"found {shown(name)} twice. Give each baseline its own name", (index, "name"))


def unknown_metrics(named: Sequence[BaselineSpec], metrics: Collection[str]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return path and problem of each baseline metric that is not measured."""
    return [
        (("baselines", index, "metrics", metric), found(metric, listed(metrics), nearest(metric, list(metrics))))
        for index, one in enumerate(named)
        for metric in one.metrics or ()
        if metric not in metrics
    ]
