"""Converts a study's record to JSON and back."""

import json
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from search_spaces.suggestions import as_plain, asked_from_plain
from search_spaces.untrusted_text import redact, redact_deep
from studies.records.records import StudyRecord

_RECORD, _ASKED = "record", "asked"


def written(record: StudyRecord) -> str:
    """Return a record as JSON without passwords, with Python's NaN and Infinity."""
    spec: Any = redact_deep(record.spec)
    uri = None if record.mlflow_uri is None else redact(record.mlflow_uri)
    bare = tuple(replace(trial, asked={}) for trial in record.trials)  # `asked` has domains, which need another form
    plain = asdict(replace(record, spec=spec, mlflow_uri=uri, trials=bare))
    asked = {str(trial.id): as_plain(trial.asked) for trial in record.trials if trial.asked}
    return json.dumps({_RECORD: plain, _ASKED: asked}, default=datetime.isoformat)


def read(text: str) -> StudyRecord:
    """Parse the text of `written`. Raises ValueError, KeyError or TypeError for another text or version."""
    document = json.loads(text)
    record: StudyRecord = _made(StudyRecord, document[_RECORD])
    asked = document[_ASKED]
    trials = tuple(replace(trial, asked=asked_from_plain(asked.get(str(trial.id)))) for trial in record.trials)
    return replace(record, trials=trials)


def _made(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if value is None:
        return None
    if origin in {Union, types.UnionType}:
        some = [one for one in get_args(kind) if one is not type(None)]
        return _made(some[0], value) if len(some) == 1 else value
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type] # a class, which is hashable
        return kind(**{one.name: _made(hints[one.name], value[one.name]) for one in fields(kind)})  # type: ignore[operator]
    if origin is tuple:
        return tuple(_made(get_args(kind)[0], one) for one in value)
    if origin is Mapping:
        return {name: _made(get_args(kind)[1], one) for name, one in value.items()}
    return datetime.fromisoformat(value) if kind is datetime else value


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)
