"""Loads this folder's templates, which escape values and refuse undefined names, and removes secrets."""

import base64
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from reports.phrases import mapping
from search_spaces.untrusted_text import escaped, redact, redact_deep
from studies.records.records import StudyRecord


@cache
def template(name: str) -> jinja2.Template:
    """Return a template by its file name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_code"] = with_code
    return environment.get_template(name)


def with_code(text: str) -> Markup:
    """Escape a text, with parts between backticks as code."""
    parts = str(escape(text)).split("`")
    whole = len(parts) % 2 == 1  # backticks come in pairs
    marked = [f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)]
    return Markup("".join(marked) if whole else escape(text))  # noqa: S704 - escaped above


_MARKUP, _FREE = "<&>", ",.:"
_TO_PAGE = str.maketrans(_MARKUP, _FREE)
_FROM_PAGE = str.maketrans(_FREE, _MARKUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A compressed text."""

    text: Markup  # zlib bytes in base 85, safe inside a script element
    size: int  # number of zlib bytes; the last group of five characters may hold fewer than four


def packed(text: str) -> Packed:
    """Compress a text for the page."""
    compressed = zlib.compress(text.encode(), 9)
    safe = base64.b85encode(compressed).decode().translate(_TO_PAGE)
    return Packed(text=Markup(safe), size=len(compressed))  # noqa: S704 - no character of markup is left


def unpacked(text: str) -> str:
    """Return the original of a `packed` text."""
    return zlib.decompress(base64.b85decode(text.strip().translate(_FROM_PAGE))).decode()


def redacted(study: StudyRecord) -> StudyRecord:
    """Return the study without secrets."""
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
