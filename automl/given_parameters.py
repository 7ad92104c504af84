"""Reads parameters typed as `NAME=VALUE`, and corrects mistyped names."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from search_spaces.messages import found, listed, nearest
from studies.spec.spec_errors import SpecError
from studies.spec.yaml_reader import read_yaml

ALIASES: Mapping[str, str] = {
    "bs": "batch_per_rank",
    "batch": "batch_per_rank",
    "batch_size": "batch_per_rank",
    "gradient_clipping": "clip_norm",
    "grad_clip": "clip_norm",
    "gpus": "world_size",
    "ranks": "world_size",
    "workers": "data_workers",
    "num_workers": "data_workers",
}
"""Names of the trainer's parameters in other programs."""


def is_spec_file(task: str) -> bool:
    """Return whether a name ends in `.yaml` or `.yml`."""
    return task.endswith((".yaml", ".yml"))


def task_name(given: str) -> str:
    """Convert `module.py:NAME`, for code in this folder, to `module:NAME`."""
    file, _, name = given.rpartition(":")
    is_here = file.endswith(".py") and "/" not in file
    return f"{file.removesuffix('.py')}:{name}" if is_here else given


def read_params(given: Sequence[str], source: str = "--param") -> dict[str, Any]:
    """Read parameters `NAME=YAML`. Raises SpecError for a wrong or doubled parameter."""
    params: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise SpecError(source, (), f"found {text!r}, allowed: NAME=VALUE")
        if name in params:
            raise SpecError(f"{source} {name}", (), f"{name} is given twice, the second time as {text!r}. Give it once")
        params[name] = read_yaml(value, f"{source} {name}")
    return params


def unknown_parameter(name: str, known: Sequence[str], group: str = "the parameters ") -> str:
    """Return the message for an unknown parameter, with a likely name."""
    return found(name, f"{group}{listed(known)}", likely_name(name, known))


def likely_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name for an alias or an abbreviation (lr, learn_rate), or the most similar name."""
    alias = ALIASES.get(name.lower())
    if alias in known:
        return alias
    abbreviated = [one for one in known if _is_abbreviation(name.lower(), one)]
    return abbreviated[0] if len(abbreviated) == 1 else nearest(name, known)


def _is_abbreviation(short: str, name: str) -> bool:
    """Return whether `short` consists of the initials of a name's words (lr) or their beginnings (learn_rate)."""
    words = name.split("_")
    if len(words) > 1 and short == "".join(word[:1] for word in words):
        return True
    given = short.split("_")
    return len(short) >= 3 and len(given) <= len(words) and all(map(str.startswith, words, given))
