"""Routes of uploaded data."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.requests import ClientDisconnect

from automl.service.http.context import context_of, identity_of, studies_for
from automl.service.http.gate import UPLOADS
from automl.service.uploads import Uploads
from search_spaces.messages import UserError

router = APIRouter()
_ANY_BYTES = {"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}}
FileName = Annotated[str, Query(description="Name under which tasks of the project read the file.")]


def uploads_of(request: Request) -> Uploads:
    """Return the uploads of the caller's project."""
    policy = context_of(request).policy
    return Uploads(policy.uploads_of(identity_of(request).project), policy.upload_bytes)


def writable_uploads(request: Request) -> Uploads:
    """`uploads_of` for callers that may write. Raises ForbiddenError for others."""
    studies_for(request).check_may_write()
    return uploads_of(request)


ReadOnly = Annotated[Uploads, Depends(uploads_of)]
Writable = Annotated[Uploads, Depends(writable_uploads)]


@router.get(UPLOADS, tags=["uploads"])
def list_uploads(uploads: ReadOnly) -> list[dict[str, Any]]:
    """List the uploaded files of your project."""
    return [asdict(one) for one in uploads.listed()]


@router.post(UPLOADS, tags=["uploads"], status_code=201, openapi_extra=_ANY_BYTES)
async def upload(request: Request, uploads: Writable, name: FileName) -> dict[str, Any]:
    """Save the request's body as a file of your project. Status 413 if the project has too little room."""
    announced = request.headers.get("content-length", "")
    length = int(announced) if announced.isdecimal() else None
    try:
        return asdict(await uploads.keep(name, request.stream(), length=length))
    except ClientDisconnect:
        raise UserError("upload: the connection ended before the whole file had arrived") from None


@router.delete(UPLOADS + "/{name}", tags=["uploads"])
def delete_upload(uploads: Writable, name: str) -> dict[str, Any]:
    """Delete an uploaded file of your project."""
    uploads.delete(name)
    return {"name": name, "message": f"{name} is deleted"}
