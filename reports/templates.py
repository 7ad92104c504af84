"""The templates of this folder. They escape every value, and refuse names that nobody gave."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape


@cache
def template(name: str) -> jinja2.Template:
    """Return a template by the name of its file."""
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
    """Return a text, escaped, in which what stands between backticks is set as code."""
    parts = str(escape(text)).split("`")
    whole = len(parts) % 2 == 1  # each backtick has a second one
    marked = [f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)]
    return Markup("".join(marked) if whole else escape(text))  # noqa: S704 - escaped above
