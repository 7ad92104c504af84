"""What people and programs hold on to: commands, keys, columns, routes, names and pages, collected from the code.

`python -m tests.support.surfaces --write` freezes what is there now in `tests/surfaces.json`; `tests/test_surfaces.py`
compares.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click
from fastapi.routing import APIRoute
from pydantic import BaseModel

import automl
from automl.cli import cli
from automl.exporting.exports import Target
from automl.mcp_server.server import TOOLS
from automl.service.http.service_app import bare_app
from automl.terminal.summary import document_of
from reports.gallery import Gallery
from search_spaces.messages import UserError
from studies.records.plain_rows import to_csv
from studies.records.records import ConfirmationRecord, Constraint, StudyRecord, TrialRecord
from studies.results.analysis import trial_rows
from studies.search.pruners.by_name import BUILT_IN, options_with_defaults
from studies.spec.study_spec import StudySpec
from studies.storage.schema.tables import metadata
from tests.support.paths import ROOT
from tests.support.service import TestedService
from tests.support.study_factory import build_study
from trainers.protocol import Failure
from trainers.trainer_options import TRAINER_PARAMETERS

FROZEN = ROOT / "tests" / "surfaces.json"
_VALUES = {"params", "values", "bounded", "trials", "charges"}
"""Keys under which the keys are names of parameters, metrics, states and kinds."""


def surfaces() -> dict[str, list[str]]:
    """What is there, by kind, each as the words by which people find it."""
    found = {
        "commands": commands(None),
        "commands with a service": commands("http://127.0.0.1:1"),
        "spec keys": set(spec_keys(StudySpec)),
        "parameters of the trainer": set(TRAINER_PARAMETERS),
        "pruners": set(BUILT_IN),
        "failures": set(get_args(Failure)),
        "columns of the store": {f"{column.table}.{column.name}" for one in metadata.sorted_tables for column in one.c},
        "columns of trials": set(to_csv(trial_rows(_study())).splitlines()[0].split(",")),
        "keys of trials --json": keys(trial_rows(_study())[0]),
        "keys of status --json": keys(document_of(_study(), report="report.html")),
        "names of automl": {*automl.__all__, *(f"Study.{name}" for name in vars(automl.Study) if name[0] != "_")},
        "figures": set(Gallery(_study())),
        "export formats": {name for part in get_args(Target) for name in get_args(part) or (part,)},
        "routes of the service": routes(),
        "tools of the MCP server": {
            f"{tool.name} {name}" for tool in TOOLS.values() for name in ("", *tool.parameters["properties"])
        },
        "environment variables": environment_variables(),
        "extras": set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]),
        "pages": {str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))},
    }  # fmt: skip
    return {kind: sorted(entry.strip() for entry in entries) for kind, entries in found.items()}


def commands(server: str | None) -> set[str]:
    """Each command with each option and argument, beside a store or with a service."""
    context = click.Context(cli)
    context.params = {"server": server}
    context.set_parameter_source("server", click.core.ParameterSource.COMMANDLINE)
    found: set[str] = set()
    for name in cli.list_commands(context):
        try:
            command = cli.get_command(context, name)
        except UserError:  # it does not run with a service
            continue
        found |= set() if command is None else set(_parts_of(command, name))
    return found


def _parts_of(command: click.Command, name: str) -> Iterator[str]:
    yield name
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield f"{name} {(parameter.metavar or parameter.name or '').upper().strip('[].')}"
        elif not getattr(parameter, "hidden", False):
            yield from (f"{name} {option}" for option in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from _parts_of(inner, f"{name} {word}")


def spec_keys(model: type[BaseModel], ahead: str = "") -> Iterator[str]:
    """Every key of a spec as a dotted path; options of built-in pruners stand beside the pruner's name."""
    for name, field in model.model_fields.items():
        path = ahead + name
        yield path
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from spec_keys(one, f"{path}.")
        if path == "search.pruner":
            for pruner in BUILT_IN:
                yield from (f"{path}.{option}" for option in options_with_defaults(pruner, {}))


def keys(document: Mapping[str, Any]) -> set[str]:
    """Keys of a document and of what stands directly below."""
    found: set[str] = set()
    for name, value in document.items():
        found.add(name)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, Mapping) and name not in _VALUES:
            found |= {f"{name}.{key}" for key in inner}
    return found


def _study() -> StudyRecord:
    """A study with constraints, a confirmed trial, a running and a waiting one, so that each key has a value."""
    study = build_study(40, states=("complete", "pruned", "failed", "running"))
    waiting = TrialRecord(id=99, number=None, state="queued", origin="enqueue", params={}, created_at=study.created_at)
    confirmed = ConfirmationRecord(
        trial=0, seed=1, epoch=9, epochs=9, metrics={"val_error": 0.1}, cost_nano_usd=1, checkpoint=None,
        confirmed_at=study.created_at,
    )  # fmt: skip
    bounds = (Constraint(metric="latency_ms", max=1.0),)
    return replace(study, constraints=bounds, trials=(*study.trials, waiting), confirmations=(confirmed,))


def routes() -> set[str]:
    """Methods and paths of the service."""
    with TemporaryDirectory() as folder:
        service = TestedService(Path(folder))
        try:
            found = list(_all_routes(bare_app(service.context)))
        finally:
            service.close()
    return {f"{method} {path}" for path, methods in found for method in methods}


def _all_routes(app: Any) -> Iterator[tuple[str, set[str]]]:
    for route in app.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is None or isinstance(route, APIRoute):
            # What is mounted without methods takes them all.
            yield route.path, set(getattr(route, "methods", None) or {"DELETE", "GET", "POST"}) - {"HEAD"}
        else:
            yield from _all_routes(inner)


def environment_variables() -> set[str]:
    """The variables that the documents name."""
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    return {name for page in pages for name in re.findall(r"\b(?:AUTOML|MLFLOW|OTEL)_[A-Z_]*[A-Z]\b", page.read_text())}


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FROZEN.write_text(json.dumps(surfaces(), indent=1) + "\n")
    else:
        sys.stdout.write(json.dumps(surfaces(), indent=1) + "\n")
