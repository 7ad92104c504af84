"""Executes the notebook of `examples`; `python -m tests.support.notebooks` writes it anew with its outputs."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "moons.ipynb"
SECONDS = 240
_FOLDERS = "|".join(["/home", "/root", "/tmp", "/usr", "/opt", "/var", "/Users", "/mnt", re.escape(str(ROOT.parent))])
MACHINE = re.compile(rf"(?<![\w.])(?:{_FOLDERS})\b[^\s<\"']*|site-packages")
"""What outputs of a notebook that others read must not have: paths of the machine that executed it."""


def executed(notebook: Path, folder: Path) -> Any:
    """Execute a copy of a notebook in a folder, and return it with its outputs.

    Figures are kept as plotly's data alone, without the program that draws them.
    """
    import nbclient
    import nbformat

    copy = Path(shutil.copy(notebook, folder))
    content = nbformat.read(copy, as_version=4)
    client = nbclient.NotebookClient(
        content, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )  # fmt: skip
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    client.execute(env={**os.environ, "PYTHONPATH": paths, "PLOTLY_RENDERER": "plotly_mimetype"})
    return content


def forms_of(outputs: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The kinds of the outputs of a cell of code, and the forms that each has."""
    return [(one["output_type"], tuple(sorted(one.get("data", {})))) for one in outputs]


def machine_paths_in(value: object) -> list[str]:
    """Paths of a machine in the texts of a notebook, or of a part of one."""
    if isinstance(value, str):
        return MACHINE.findall(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [path for part in parts for path in machine_paths_in(part)]


def write_anew() -> None:
    """Execute the example and write it with its outputs."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        content = executed(EXAMPLE, Path(folder))
    content["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if found := machine_paths_in(content):
        raise SystemExit(f"{EXAMPLE.name} was not written: it would have {found[0]}")
    EXAMPLE.write_text(nbformat.writes(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_anew()
