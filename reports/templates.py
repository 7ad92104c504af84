"""The templates of this folder. They escape every value, and refuse names that nobody gave."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2


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
    return environment.get_template(name)
