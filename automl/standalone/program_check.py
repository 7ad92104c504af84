"""Refuses program files that could run code while they are loaded.

`torch.export.load` trusts its file: it unpickles weights and examples if the file says so, evaluates length expressions
with sympy, executes guards, resolves operators by any dotted name below `torch`, imports modules of container types,
writes input names into code, and loads compiled libraries. So a file may contain only the parts of our own exports:
aten operators, plain names, sums and products of lengths, and tensors as bytes. Any other string is refused.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UnsafeProgramError

_FILES = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json|extra/[\w.-]+"
    r"|archive_format|archive_version|\.?data/version|version|byteorder|\.data/serialization_id"
)
_OPERATOR = re.compile(
    r"torch\.ops\.aten\.(?!from_file)\w+\.\w+"
    r"|torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
    r"|math\.(ceil|floor|sqrt|trunc)|torch\.sym_(float|int|ite|max|min|not|sqrt)"
)
_PLAIN = re.compile(r"[\w.+-]*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FUNCTIONS = (
    "Add|Mul|Pow|Mod|Max|Min|Integer|FloorDiv|CeilDiv|CleanDiv|ModularIndexing|PythonMod|IntTrueDiv|ToFloat|TruncToInt|"
    "CeilToInt|FloorToInt|Equality|Unequality|StrictLessThan|StrictGreaterThan|LessThan|GreaterThan|And|Or|Not"
)
_EXPRESSION = re.compile(
    rf"(?:Symbol\('[su]\d+'(?:, (?:positive|nonnegative|integer|real)=(?:True|False))*\)"
    rf"|[su]\d+\b|(?:{_FUNCTIONS})\(|-?\d+\b|true|false|[), ]|[ +*/%-])*",
    re.ASCII,
)
_CONTAINERS = ("builtins.tuple", "builtins.list", "builtins.dict", None)
_SPECS = ("in_spec", "out_spec")
_MOST_JSON_BYTES = 200_000_000
NO_ARCHIVE = (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, zlib.error)
"""Exceptions for a file that is no archive, or a damaged archive."""


def checked_program(path: str | Path) -> io.BytesIO:
    """Return an exported .pt2 file for torch to load, rewritten from checked entries. UnsafeProgramError names others.

    Torch's own archive reader may see other entries in a crafted file, and the file may change after the check.
    """
    checked = io.BytesIO()
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:  # noqa: PTH123 - one open file for all reads
            _check_files(archive, os.fstat(file.fileno()).st_size)
            with zipfile.ZipFile(checked, "w", zipfile.ZIP_STORED) as whole:
                for name in archive.namelist():
                    content = archive.read(name)
                    _check_content(name, content)
                    whole.writestr(name, content)
    except UnsafeProgramError as error:
        raise UnsafeProgramError(f"{path}: found {error}, allowed: a program that `automl export` wrote") from None
    except (*NO_ARCHIVE, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UnsafeProgramError(f"{path} is no program ({reason}). Name a .pt2 file of `automl export`") from None
    checked.seek(0)
    return checked


def _check_files(archive: zipfile.ZipFile, size: int) -> None:
    names = archive.namelist()
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1 or len(set(names)) != len(names):
        raise UnsafeProgramError("files of the same name, or in several folders")
    for entry in archive.infolist():
        if not _FILES.fullmatch(entry.filename.partition("/")[2]):
            raise UnsafeProgramError(f"the file {entry.filename[:80]!r}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise UnsafeProgramError(f"the compressed file {entry.filename[:80]!r}")
    if sum(entry.file_size for entry in archive.infolist()) > size:
        raise UnsafeProgramError("files that overlap")
    root = roots.pop()
    needed = {f"{root}/models/model.json", f"{root}/archive_format", f"{root}/archive_version"}
    if not needed <= set(names) or archive.read(f"{root}/archive_format") != b"pt2":
        raise UnsafeProgramError("another kind of archive")


def _check_content(name: str, content: bytes) -> None:
    if name.endswith("sample_inputs/model.pt") and content:
        raise UnsafeProgramError("examples, which are pickled")
    if not name.endswith(".json") or "/extra/" in name:
        return
    if len(content) > _MOST_JSON_BYTES:
        raise UnsafeProgramError(f"the very large file {name[:80]!r}")
    _check_value(json.loads(content), "", name.partition("/")[2])


def _check_value(value: Any, key: str, where: str) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not _PLAIN.fullmatch(name):
                raise UnsafeProgramError(f"the name {name[:60]!r} in {where}")
            _check_value(inner, name, where)
    elif isinstance(value, list):
        for inner in value:
            _check_value(inner, key, where)
    elif isinstance(value, str):
        _check_text(value, key, where)
    if (key == "use_pickle" and value) or (key == "guards_code" and value):
        raise UnsafeProgramError(f"{key} {str(value)[:60]!r} in {where}")


def _check_text(text: str, key: str, where: str) -> None:
    if key in _SPECS:
        _check_spec(json.loads(text), where)
        return
    if key == "as_string":  # an argument such as a rounding mode, which torch writes as a literal
        return
    if key == "name" and text and not _WORD.fullmatch(text):
        raise UnsafeProgramError(f"the name {text[:60]!r} in {where}")
    rules = {"target": _OPERATOR, "expr_str": _EXPRESSION}
    if not rules.get(key, _PLAIN).fullmatch(text):
        raise UnsafeProgramError(f"the {'operator' if key == 'target' else 'text'} {text[:60]!r} in {where}")


def _check_spec(spec: Any, where: str) -> None:
    """Check a description of nested containers: only Python's own types, with plain names as keys."""
    if isinstance(spec, list):
        for inner in spec:
            _check_spec(inner, where)
        return
    if not isinstance(spec, Mapping):
        return
    context = spec.get("context")
    keys = json.loads(context) if isinstance(context, str) else context
    is_plain = keys is None or (isinstance(keys, list) and all(isinstance(one, str | int) for one in keys))
    if spec.get("type") not in _CONTAINERS or not is_plain:
        raise UnsafeProgramError(f"the container {str(spec.get('type'))[:60]!r} in {where}")
    _check_spec(spec.get("children_spec", []), where)
