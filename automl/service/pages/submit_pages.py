"""Page to submit a study: from an uploaded table, a form, or YAML."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Request, Response

from automl.launching.quickstart import HOURS, USD, budget_note
from automl.service.http.context import ServiceContext, service_of, studies_of
from automl.service.http.routes_uploads import uploads_of, writable_uploads
from automl.service.operator_policy import names_defined_in
from automl.service.pages.rendering import PageRoute, form_of, one_line, page, status_of, to
from automl.service.pages.table_questions import TableHead, head_of, table_spec
from automl.service.subprocess_questions import plan
from automl.service.team_studies import TeamStudies
from automl.service.uploads import Uploads
from search_spaces.messages import RunError, UserError, found
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_overrides
from studies.spec.yaml_reader import read_yaml, write_yaml
from trainers.contract.task_loading import built_in_tasks

SHOWN = ("study", "task", "task_options", "objectives", "training.epochs", "budget.usd", "budget.hours",
         "budget.trials", "resources.slots")  # fmt: skip
"""Keys of the spec that the form always shows."""
FURTHER = ("space", "constraints", "search.sampler", "search.pruner", "search.seed", "search.from_studies",
           "budget.usd_per_trial", "resources.device", "training.schedule", "training.precision")  # fmt: skip
"""Keys that the form shows on demand."""
MOST_FILES = 200
_TEXT_KEYS = frozenset({"study", "task"})
_WORDS = {
    "study": "name of the study", "task": "task", "task_options": "options of the task", "objectives": "objectives",
    "training.epochs": "epochs of a training", "budget.usd": "budget in dollars", "budget.hours": "budget in hours",
    "budget.trials": "largest number of trials", "resources.slots": "slots",
    "space": "space to search", "constraints": "constraints", "search.sampler": "sampler", "search.pruner": "pruner",
    "search.seed": "seed", "search.from_studies": "studies to learn from",
    "budget.usd_per_trial": "largest cost of a trial in dollars", "resources.device": "device",
    "training.schedule": "schedule of the learning rate", "training.precision": "precision",
}  # fmt: skip
_EXAMPLES = {
    "task_options": "YAML, such as train: flowers.csv",
    "objectives": "YAML, such as [{metric: val_error}, {metric: cost_usd}]",
    "constraints": "YAML, such as [{metric: latency_ms, max: 5}]",
    "space": "YAML, such as learning_rate: {type: float, low: 0.001, high: 1, log: true}; the task's own if empty",
}
"""Examples for YAML fields, more helpful than the schema."""
router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
Context = Annotated[ServiceContext, Depends(service_of)]
Form = Annotated[Mapping[str, str], Depends(form_of)]
WAYS = {"table": "From a table", "form": "Form", "yaml": "YAML"}
_CHANGED_BY_FORM = ("study", "training:", "budget:")
"""First words of notes about choices that fields of the page can change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of the form. `default` is the text shown for an empty field."""

    key: str
    label: str
    hint: str
    default: str
    is_long: bool
    is_required: bool


@cache
def fields(keys: tuple[str, ...]) -> tuple[Field, ...]:
    """Return the form fields of keys of the spec."""
    schema = StudySpec.model_json_schema()
    return tuple(_field(schema, key) for key in keys)


def _field(schema: Mapping[str, Any], key: str) -> Field:
    section, _, name = key.rpartition(".")
    of_section: Mapping[str, Any] = schema
    if section:
        of_section = schema["$defs"][schema["properties"][section]["$ref"].rpartition("/")[2]]
    known = of_section["properties"][name]
    default = known.get("default")
    is_long = known.get("type") in {"array", "object"} or name == "space"
    return Field(
        key=key,
        label=_WORDS[key],
        hint=_EXAMPLES.get(key, known.get("description", "")),
        default="" if default in (None, "", [], {}) else write_yaml(default).removesuffix("...\n"),
        is_long=is_long,
        is_required=key in of_section.get("required", ()) or key == "study",
    )


def spec_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a submitted form, without empty fields."""
    spec: dict[str, Any] = {}
    for key in (*SHOWN, *FURTHER):
        text = given.get(key, "")
        if not text:
            continue
        section, _, name = key.rpartition(".")
        place = spec.setdefault(section, {}) if section else spec
        place[name] = text if key in _TEXT_KEYS else read_yaml(text, source=f"form: {key}")
    return spec


def offered_tasks(code_folders: Mapping[str, Path]) -> list[str]:
    """Return the names of built-in tasks, and of tasks in the code folders, whose files are parsed but not run."""
    own = (name for folder in code_folders.values() for name in _defined_in(folder))
    return [*built_in_tasks(), *dict.fromkeys(own)]


def _defined_in(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py"))[:MOST_FILES]:
        yield from (f"{path.stem}:{name}" for name in sorted(names_defined_in(path)) if not name.startswith("_"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """A study as filled in by the user. `code` names its code folder, or is None."""

    spec: dict[str, Any] | str
    code: str | None = None
    notes: tuple[str, ...] = ()


@router.get("/submit")
def submit_page(request: Request, studies: Studies, context: Context) -> Response:
    """Show the form of the query's `how` (a key of `WAYS`), for its `file`, an uploaded table."""
    studies.check_may_write()
    return _submit_page(request, context, dict(request.query_params))


def _submit_page(
    request: Request, context: ServiceContext, form: Mapping[str, str], *, status: int = 200, **more: Any
) -> Response:
    takes_uploads = context.policy.uploads is not None
    uploads = uploads_of(request) if takes_uploads else None
    files = uploads.listed() if uploads else []
    file = form.get("file", "") if form.get("file") in {one.name for one in files} else ""
    how = form.get("how", "")
    how = how if how in WAYS else "table" if takes_uploads else "form"
    return page(
        request,
        "submit.html",
        status=status,
        how=how,
        ways=WAYS,
        form=form,
        takes_uploads=takes_uploads,
        files=files,
        file=file,
        most_bytes=uploads.most_bytes if uploads else 0,
        head=head_of(uploads.path_of(file)) if uploads and file else TableHead(),
        shown=fields(SHOWN),
        further=fields(FURTHER),
        tasks=offered_tasks(context.policy.code_folders),
        folders=list(context.policy.code_folders),
        quick={"usd": USD, "hours": HOURS},
        **({"plan": None, "notes": (), "problem": ""} | more),
    )


@router.post("/submit")
def submit(request: Request, studies: Studies, context: Context, form: Form) -> Response:
    """Queue a study, or show its plan and cost."""
    studies.check_may_write()
    try:
        picked = _picked(request, studies, form)
        if form.get("do") == "check":
            spec, base_folder = studies.admitted(picked.spec, code=picked.code)
            return _submit_page(request, context, form, notes=picked.notes, **_shown_plan(spec, base_folder))
        job = studies.submit(picked.spec, code=picked.code)
    except (UserError, RunError) as error:
        return _submit_page(request, context, form, status=status_of(error), problem=one_line(error))
    return to(f"/studies/{quote(job.study)}")


def _shown_plan(spec: StudySpec, base_folder: str) -> dict[str, Any]:
    found_plan = plan(spec, base_folder)
    text = write_yaml(found_plan["spec"])
    return {"plan": found_plan, "plan_text": text, "budget": budget_note(spec).removeprefix("budget: ")}


def _picked(request: Request, studies: TeamStudies, form: Mapping[str, str]) -> Picked:
    how = form.get("how", "")
    code = form.get("code") or None
    if how == "table":
        return _from_table(uploads_of(request), studies, form)
    if how == "yaml":
        return Picked(spec=form.get("yaml", ""), code=code)
    return Picked(spec=spec_of(form), code=code)


def _from_table(uploads: Uploads, studies: TeamStudies, form: Mapping[str, str]) -> Picked:
    options = {"data": str(uploads.path_of(form.get("file", ""))), "target": form.get("target", "")}
    if not options["target"]:
        raise SpecError("form", ("target",), found("", "the column to predict"))
    if form.get("test"):
        options["test_data"] = str(uploads.path_of(form["test"]))
    changes = [line.strip() for line in form.get("changes", "").splitlines() if line.strip()]
    own = {"study": form.get("study", ""), "resources.slots": form.get("slots", "")}
    own |= {"training.epochs": form.get("epochs", "")}
    given = spec_of({f"budget.{key}": form.get(key, "") for key in ("usd", "hours", "trials")} | own)
    named = {"train": options["data"], "target": options["target"]}
    draft: dict[str, Any] = {"study": "table", "task": "tabular", "task_options": named, "objectives": ["val_error"]}
    # The operator's rules come before the table is read, since changes may name other files.
    admitted, base_folder = studies.admitted(apply_overrides({**draft, **given}, changes))
    if admitted.task != "tabular":
        raise SpecError(
            "form", ("changes",), f"found the task {admitted.task}, allowed: tabular. Use the form for other tasks"
        )
    spec, notes = table_spec(options, changes, base_folder)
    spec["budget"] = {**spec.get("budget", {}), **given.pop("budget", {})}
    told = tuple(note for note in notes if note.partition(" ")[0] not in _CHANGED_BY_FORM)
    return Picked(spec={**spec, **given}, notes=told)


@router.post("/uploads/{name}/delete")
def delete_upload(uploads: Annotated[Uploads, Depends(writable_uploads)], name: str) -> Response:
    """Delete an uploaded file."""
    uploads.delete(name)
    return to(f"/submit?{urlencode({'how': 'table'})}")
