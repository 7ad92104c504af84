"""The page on which a study is submitted: from an uploaded table, from a form, or as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Request, Response

from automl.launching.quickstart import HOURS, USD, budget_note
from automl.service.bodies import SubmissionBody, filled_in
from automl.service.checking import plan
from automl.service.context import ServiceContext, service_of, studies_of
from automl.service.errors import ForbiddenError
from automl.service.rendering import PageRoute, form_of, one_line, page, status_of, to
from automl.service.spec_form import FURTHER, SHOWN, fields, offered_tasks, spec_of
from automl.service.table_spec import columns_of, table_spec
from automl.service.team_studies import TeamStudies
from automl.service.upload_routes import uploads_of, writable_uploads
from automl.service.uploads import Uploads
from search_spaces.errors import RunError, UserError
from search_spaces.wording import found
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.spec.yaml_reader import write_yaml

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
Context = Annotated[ServiceContext, Depends(service_of)]
Form = Annotated[Mapping[str, str], Depends(form_of)]
WAYS = {"table": "From a table", "form": "Form", "yaml": "YAML"}
_TABLE_BUDGET = ("usd", "hours", "trials")
_CHANGED_BY_FORM = ("study", "training:", "budget:")
"""First words of notes about what the fields of the page may change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """A study as it was filled in.

    Attributes:
        spec: The spec as a YAML file has it.
        code: Name of the code folder; None without one.
        notes: What was chosen from the data, and why.
    """

    spec: dict[str, Any]
    code: str | None = None
    notes: tuple[str, ...] = ()


@router.get("/submit")
def submit_page(request: Request, studies: Studies, context: Context) -> Response:
    """Show the form of one way to submit; `how` names it, and `file` an uploaded table."""
    if studies.identity.role == "viewer":
        raise ForbiddenError("role: found viewer, which only reads, allowed: member or admin")
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
        columns=columns_of(uploads.path_of(file)) if uploads and file else [],
        shown=fields(SHOWN),
        further=fields(FURTHER),
        tasks=offered_tasks(context.policy.code_folders),
        folders=list(context.policy.code_folders),
        quick={"usd": USD, "hours": HOURS},
        **({"plan": None, "notes": (), "problem": ""} | more),
    )


@router.post("/submit")
def submit(request: Request, studies: Studies, context: Context, form: Form) -> Response:
    """Queue a study, or say what it would do and cost."""
    try:
        picked = _picked(request, form)
        if form.get("do") == "check":
            spec, base_folder = studies.admitted(picked.spec, code=picked.code)
            return _submit_page(request, context, form, notes=picked.notes, **_shown_plan(spec, base_folder))
        job = studies.submit(picked.spec, code=picked.code)
    except (UserError, RunError) as error:
        return _submit_page(request, context, form, status=status_of(error), problem=one_line(error))
    return to(f"/studies/{quote(job.study)}")


def _shown_plan(spec: StudySpec, base_folder: str) -> dict[str, Any]:
    """What the study would do, for the page."""
    found_plan = plan(spec, base_folder)
    text = write_yaml(found_plan["spec"])
    return {"plan": found_plan, "plan_text": text, "budget": budget_note(spec).removeprefix("budget: ")}


def _picked(request: Request, form: Mapping[str, str]) -> Picked:
    how = form.get("how", "")
    code = form.get("code") or None
    if how == "table":
        return _from_table(uploads_of(request), form)
    if how == "yaml":
        return Picked(spec=filled_in(SubmissionBody, {"spec": form.get("yaml", "")}).mapping, code=code)
    return Picked(spec=spec_of(form), code=code)


def _from_table(uploads: Uploads, form: Mapping[str, str]) -> Picked:
    """A spec chosen from the data of an uploaded table, with the budget of the form."""
    file, target = uploads.path_of(form.get("file", "")), form.get("target", "")
    if not target:
        raise SpecError("form", ("target",), found("", "the column that is to be predicted"))
    spec, notes = table_spec(file, target)
    given = spec_of({f"budget.{key}": form.get(key, "") for key in _TABLE_BUDGET} | _own_keys(form))
    spec["budget"] = {**spec.get("budget", {}), **given.pop("budget", {})}
    told = tuple(note for note in notes if note.partition(" ")[0] not in _CHANGED_BY_FORM)
    return Picked(spec={**spec, **given}, notes=told)


def _own_keys(form: Mapping[str, str]) -> dict[str, str]:
    own = {"study": form.get("study", ""), "resources.slots": form.get("slots", "")}
    return own | {"training.epochs": form.get("epochs", "")}


@router.post("/uploads/{name}/delete")
def delete_upload(uploads: Annotated[Uploads, Depends(writable_uploads)], name: str) -> Response:
    """Delete an uploaded file."""
    uploads.delete(name)
    return to(f"/submit?{urlencode({'how': 'table'})}")
