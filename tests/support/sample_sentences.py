"""Draws sentences at random for a reader who has not seen the code: messages, help, docstrings, pages.

`python -m tests.support.sample_sentences [SEED]` prints 25 of each. The reader marks those read twice.
"""

import ast
import importlib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from automl.cli import COMMANDS, MODULES
from tests.support.paths import ROOT
from tests.support.plain_words import checked_files

EACH = 25
LEAST_WORDS = 5
SAYING = frozenset({"echo", "say_on_stderr", "warn", "warning"})


def template(node: ast.AST) -> str:
    """Return a string or an f-string of the source with its expressions in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    parts = node.values if isinstance(node, ast.JoinedStr) else ()
    return "".join(f"{{{ast.unparse(p.value)}}}" if isinstance(p, ast.FormattedValue) else template(p) for p in parts)


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of raised errors and of printed lines."""
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if isinstance(node, ast.Raise) or name in SAYING:
            yield from map(template, call.args)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the first paragraph of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield (ast.get_docstring(node) or "").split("\n\n")[0]


def page_sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a Markdown page, without headings, tables and blocks."""
    for paragraph in re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).split("\n\n"):
        if not paragraph.startswith(("#", "|")):
            yield from re.split(r"(?<=[.!?:]) +(?=[A-Z`*])", " ".join(paragraph.split()))


def help_lines() -> Iterator[str]:
    """Yield the help of each command and of its options."""
    for name in COMMANDS:
        module = MODULES.get(name, name)
        waiting = [getattr(importlib.import_module(f"automl.commands.{module}"), module)]
        while waiting:
            command = waiting.pop()
            waiting += command.commands.values() if isinstance(command, click.Group) else ()
            yield command.help or ""
            yield from (one.help or "" for one in command.params if isinstance(one, click.Option))


def main(seed: int) -> None:
    """Print the sample."""
    files = [(file, file.relative_to(ROOT)) for file in checked_files()]
    code = [(ast.parse(file.read_text("utf-8")), place) for file, place in files if file.suffix == ".py"]
    pages = [(file, place) for file, place in files if place.parts[0] == "docs" or place.name == "README.md"]
    kinds = {
        "messages": [f"{place}: {one}" for tree, place in code for one in messages(tree)],
        "help": list(help_lines()),
        "docstrings": [f"{place}: {one}" for tree, place in code for one in docstrings(tree)],
        "pages": [f"{place}: {one}" for file, place in pages if file.suffix == ".md" for one in page_sentences(file)],
    }
    draw = random.Random(seed)
    for kind, found in kinds.items():
        long = list(dict.fromkeys(" ".join(one.split()) for one in found if len(one.split()) > LEAST_WORDS))
        print(f"\n{kind}, {EACH} of {len(long)}")
        for number, one in enumerate(draw.sample(long, EACH), start=1):
            print(f"{number}. {one}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
