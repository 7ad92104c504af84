"""Builds the OpenAPI document of a model from its manifest."""

import sys
from collections.abc import Mapping
from typing import Any

from .json_rows import LONGEST_TEXT, keys_of
from .served import Served
from .settings import Settings

_NUMBER_TEXT = r"^[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,2})?$"
_LARGEST = sys.float_info.max
_BEYOND_FLOAT32 = 3.4028235677973366e38  # smallest number that float32 rounds to infinity
_ANY_CELL = [{"type": "string", "maxLength": LONGEST_TEXT}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]
_DTYPE_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "float32": {"type": "number", "exclusiveMinimum": -_BEYOND_FLOAT32, "exclusiveMaximum": _BEYOND_FLOAT32},
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "uint8": {"type": "integer", "minimum": 0, "maximum": 255},
}
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
_OBJECT = {"type": "object", "additionalProperties": False}
_HEADERS = [
    {
        "name": "X-Request-ID", "in": "header", "schema": {"type": "string"},
        "description": "Id of the request. The answer repeats it if it has at most 200 letters, digits and ._:-; "
        "otherwise, and without an id, the answer has a new id.",
    },
]  # fmt: skip
_RETRY = {"Retry-After": {"description": "Seconds after which the request may succeed.", "schema": {"type": "integer"}}}
_ERRORS: Mapping[str, tuple[str, str]] = {
    "401": ("The token is missing or wrong.", "header Authorization: no valid token. Send Bearer TOKEN"),
    "403": ("The header Host is no name of this machine.", "header Host: found another name"),
    "408": ("The body did not arrive in time.", "body: incomplete after 30 seconds"),
    "413": ("The body is too large.", "body: 20000000 bytes, but at most 16777216 are allowed"),
    "422": ("The body does not fit the model.", "row 1, column 'age': found 'old', allowed: a finite number"),
    "429": ("Too many rows wait.", "4096 rows wait already, and at most 4096 may wait"),
    "500": ("The server failed.", "the server failed: RuntimeError"),
    "503": ("There was no answer in time.", "no answer within 30 seconds. Try again"),
}
_RETRIED = ("429", "503")


def openapi_of(settings: Settings, served: Served | None) -> dict[str, Any]:
    """Return a model's document, or (None) a generic document without name, columns and labels."""
    about = "Predicts rows with a trained model. `model` in an answer names the version that predicted."
    if served is None:
        about += " With the token this document has the form of rows and predictions, and examples."
    manifest: Mapping[str, Any] = {} if served is None else served.model.manifest
    detail = {"type": "string", "description": "One line that names the place, what was found and what is allowed."}
    error = _OBJECT | {"properties": {"detail": detail}, "required": ["detail"]}
    row = row_schema(manifest.get("rows"))
    answer = answer_schema(manifest.get("answers"))
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": str(manifest.get("study", "A trained model")),
            "version": "1" if served is None else served.version,
            "description": about,
        },
        "paths": {
            "/predict": {"post": _predict(settings, row, _kind_of(manifest))},
            "/predict/batch": {"post": _predict_batch(settings, row, _kind_of(manifest))},
            "/health": {"get": _health()},
            "/metrics": {"get": _metrics(settings)},
        },
        "components": {"schemas": {"Row": row, "Answer": answer, "Error": error}},
    }
    if not settings.is_open:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def row_schema(form: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON schema of the manifest's `rows`, with an example."""
    if form is None:
        return {"description": "A row as the model takes it."}
    if form["kind"] == "table":
        return _table(form)
    if form["kind"] == "text":
        example = "An example of a text."
        return {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT, "examples": [example]}
    if form["kind"] == "image":
        what = "The content of an image file (PNG, JPEG, WebP, GIF, BMP or TIFF) in base64."
        return {"type": "string", "format": "base64-image", "description": what, "examples": [_PIXEL]}
    return _array(form)


def answer_schema(form: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON schema of the manifest's `answers`."""
    kind = None if form is None else form["kind"]
    number = {"type": "number"}
    properties: dict[str, Any] = {"outputs": {"description": "The model's outputs, unchanged."}}
    required = ["outputs"]
    if kind == "classes":
        labels = [str(label) for label in form["labels"]]  # type: ignore[index]
        each = dict.fromkeys(labels, _PROBABILITY)
        properties = {
            "label": {"type": "string", "enum": labels},
            "confidence": _PROBABILITY,
            "probabilities": _OBJECT | {"properties": each, "required": labels},
        }
        required = list(properties)
    elif kind == "number":
        properties = {"value": number, "low": number, "high": number}
        required = ["value"]
    elif kind == "next_token":
        each_token = {"type": "object", "additionalProperties": _PROBABILITY}
        properties = {"token": {"type": "string"}, "confidence": _PROBABILITY, "probabilities": each_token}
        required = list(properties)
    return {"type": "object", "properties": properties, "required": required}


def _table(form: Mapping[str, Any]) -> dict[str, Any]:
    missing = sorted(form["missing"])
    properties: dict[str, Any] = {}
    example: dict[str, Any] = {}
    for one in form["numbers"]:
        if one["is_date"]:
            values: list[dict[str, Any]] = [{"type": "string", "format": "date"}]
            example[one["name"]] = "2024-12-31"
        else:
            values = [
                {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
                {"type": "string", "pattern": _NUMBER_TEXT},
            ]
            example[one["name"]] = one["median"]
        words = [{"type": "string", "enum": missing}] if missing else []
        properties[one["name"]] = {"anyOf": [*values, *words, {"type": "null"}]}
    for one in form["categories"]:
        levels = list(one["levels"])
        shown = ", ".join(map(repr, levels[:20])) + (", ..." if len(levels) > 20 else "")
        properties[one["name"]] = {"anyOf": _ANY_CELL, "description": f"Known values: {shown}."}
        example[one["name"]] = levels[0] if levels else None
    required = list(properties)
    for name in form["known"]:
        if name not in properties:
            properties[name] = {"anyOf": _ANY_CELL, "description": "Not used by the model."}
    return _OBJECT | {"properties": properties, "required": required, "examples": [example]}


def _array(form: Mapping[str, Any]) -> dict[str, Any]:
    shape = [int(length) for length in form["shape"]]
    schema: dict[str, Any] = dict(_DTYPE_LIMITS[form["dtype"]])
    example: Any = 0
    for length in reversed(shape):
        example = [example] * max(1, length)
        limits = {"minItems": 1} if length < 0 else {"minItems": length, "maxItems": length}
        schema = {"type": "array", "items": schema} | limits
    return schema | {"examples": [example]}


def _kind_of(manifest: Mapping[str, Any]) -> str:
    rows = manifest.get("rows")
    return str(rows["kind"]) if rows else ""


def _body(key: str, kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    bodies = [_OBJECT | {"properties": {name: value}, "required": [name]} for name in keys_of(key, kind)]
    return bodies[0] if len(bodies) == 1 else {"oneOf": bodies}


def _predict(settings: Settings, row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    body = _body("row", kind, _reference("Row"))
    model = {"properties": {"model": {"type": "string"}}, "required": ["model"]}
    example = {"row": row["examples"][0]} if "examples" in row else None
    return _post(settings, "Predict one row.", body, {"allOf": [_reference("Answer"), model]}, example)


def _predict_batch(settings: Settings, row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    rows = {"type": "array", "items": _reference("Row"), "minItems": 1, "maxItems": settings.request_rows}
    body = _body("rows", kind, rows)
    answers = {"type": "array", "items": _reference("Answer")}
    found = _OBJECT | {
        "properties": {"answers": answers, "model": {"type": "string"}}, "required": ["answers", "model"],
    }  # fmt: skip
    example = {"rows": [row["examples"][0]] * 2} if "examples" in row else None
    return _post(settings, "Predict several rows.", body, found, example)


def _post(settings: Settings, summary: str, body: Any, answer: Any, example: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body}
    if example is not None:
        content["example"] = example
    return {
        "summary": summary,
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {"200": _response("The answer.", answer), **_errors(settings, set(_ERRORS))},
    }


def _health() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    properties = {
        "status": {"type": "string", "enum": ["ok"]},
        "model_loaded": {"type": "boolean"},
        "model": text,
        "problem": text | {"description": "Why the newest model is not served."},
    }
    found = _OBJECT | {"properties": properties, "required": list(properties)}
    responses = {"200": _response("Requests are answered.", found)}
    return {"summary": "Return whether requests are answered.", "responses": responses, "security": []}


def _metrics(settings: Settings) -> dict[str, Any]:
    text = {"description": "Figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "summary": "Figures for Prometheus.",
        "responses": {"200": text, **_errors(settings, {"401", "403", "500"})},
    }


def _errors(settings: Settings, which: set[str]) -> dict[str, Any]:
    left_out = "401" if settings.is_open else "403"
    found: dict[str, Any] = {}
    for status, (what, example) in _ERRORS.items():
        if status in which and status != left_out:
            found[status] = _response(what, _reference("Error"), example={"detail": example})
            if status in _RETRIED:
                found[status]["headers"] = _RETRY
    return found


def _response(what: str, schema: Any, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"description": what, "content": {"application/json": content}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
