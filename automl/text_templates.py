"""Renders templates of Dockerfiles, manifests and scripts."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENDING = ".jinja"


def rendered(folder: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """Render a folder's templates. Returns the texts by relative file name without `.jinja`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=False,  # noqa: S701 - no HTML; the templates quote names of users
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return {
        name.removesuffix(ENDING): environment.get_template(name).render(values)
        for name in sorted(environment.list_templates(extensions=["jinja"]))
    }


def cluster_name(study: str, prefix: str) -> str:
    """Make a name for Docker and Kubernetes: at most 50 small letters, digits and dashes, first a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")[:50].strip("-")
    return f"{prefix}-{name}".rstrip("-") if not name[:1].isalpha() else name
