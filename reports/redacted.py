"""A study without passwords and control characters in its texts."""

from dataclasses import replace

from reports.phrases import mapping
from search_spaces.untrusted_text import escaped, redact, redact_deep
from studies.records.records import StudyRecord


def redacted(study: StudyRecord) -> StudyRecord:
    """Return the study with safe texts, so that pages, figures and summaries need not hide anything."""
    trials = tuple(
        replace(
            t,
            reason=_shown(t.reason),
            error=None if t.error is None else _shown(t.error),
            params={name: _shown(v) if isinstance(v, str) else v for name, v in t.params.items()},
            decisions=tuple(replace(d, reason=_shown(d.reason)) for d in t.decisions),
        )
        for t in study.trials
    )
    spec = mapping(redact_deep(study.spec))
    return replace(study, trials=trials, spec=spec, mlflow_uri=redact(study.mlflow_uri) if study.mlflow_uri else None)


def _shown(text: str) -> str:
    return escaped(redact(text))
