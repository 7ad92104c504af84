"""A study's record as JSON, from which the same record is made: what a service sends, and its clients print."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from search_spaces.asked import as_plain, from_plain
from studies.records import StudyRecord
from studies.redact import redact, redact_deep

_RECORD, _ASKED = "record", "asked"


def written(record: StudyRecord) -> str:
    """Return a record as JSON without passwords; NaN and infinity are written as Python's `json` reads them.

    Args:
        record: Study as committed.
    """
    spec: Any = redact_deep(record.spec)
    uri = None if record.mlflow_uri is None else redact(record.mlflow_uri)
    bare = tuple(replace(trial, asked={}) for trial in record.trials)  # domains have a form of their own
    plain = to_jsonable_python(replace(record, spec=spec, mlflow_uri=uri, trials=bare), inf_nan_mode="constants")
    asked = {str(trial.id): as_plain(trial.asked) for trial in record.trials if trial.asked}
    return json.dumps({_RECORD: plain, _ASKED: asked})


def read(text: str) -> StudyRecord:
    """Return the record of which `written` made this text.

    Raises:
        ValueError: It is the text of no record, such as that of a service of another version.
    """
    document = json.loads(text)
    record = _adapter().validate_python(document[_RECORD])
    asked = document[_ASKED]
    trials = tuple(replace(trial, asked=from_plain(asked.get(str(trial.id)))) for trial in record.trials)
    return replace(record, trials=trials)


@cache
def _adapter() -> TypeAdapter[StudyRecord]:
    return TypeAdapter(StudyRecord)
