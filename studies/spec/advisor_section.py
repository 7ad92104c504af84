"""Section `search.advisor` of a spec: a program that proposes configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from studies.spec.section import Section


class AdvisorSpec(Section):
    """A program that gets the trials so far, and prints proposals (`studies.search.samplers.advisor`)."""

    WITHOUT_NAME = ("command",)

    if TYPE_CHECKING:

        def __init__(self, command: tuple[str, ...] | list[str], *, seconds: float = 30.0) -> None: ...

    command: Annotated[
        tuple[Annotated[str, Field(strict=True, min_length=1)], ...],
        Field(min_length=1, description="a list of texts, such as [python, advise.py]"),
    ]
    seconds: Annotated[
        float, Field(strict=True, gt=0, le=86400, description="a number of seconds above 0 and up to 86400")
    ] = 30.0
