"""Looks for the words of plain_words.txt in docstrings, comments, messages and documents.

`python -m tests.support.plain_words [FILE...]` prints each place, and exits with 1 if there is any.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

LIST = Path(__file__).with_suffix(".txt")
FENCED = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Avoided:
    """An expression to avoid: `where` is start, text or message."""

    where: str
    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with the line that it begins in; `kind` is docstring, comment, message or page."""

    kind: str
    line: int
    text: str


def avoided() -> list[Avoided]:
    """Return the list of the file."""
    lines = (line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    found = []
    for line in lines:
        where, pattern, instead = re.split(r" +\| +", line)
        found.append(
            Avoided(where, re.compile(rf"\b(?:{pattern})\b" if where != "start" else pattern, re.IGNORECASE), instead)
        )
    return found


def passages(path: Path) -> Iterator[Passage]:
    """Yield the texts of a module or a Markdown page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        plain = FENCED.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), source)
        yield from (Passage("page", number, line) for number, line in enumerate(plain.splitlines(), 1))
        return
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings.add(value)
                yield Passage("docstring", value.lineno, value.value)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and " " in node.value
        ):
            yield Passage("message", node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Passage("comment", token.start[0], token.string)


def complaints(path: Path, words: list[Avoided]) -> Iterator[str]:
    """Yield a line for each expression to avoid: place, expression, cure."""
    for passage in passages(path):
        for word in words:
            if word.where == "start":
                match = word.pattern.match(passage.text) if passage.kind == "docstring" else None
            elif word.where == "message" and passage.kind != "message":
                match = None
            else:
                match = word.pattern.search(passage.text)
            if match:
                line = passage.line + passage.text.count("\n", 0, match.start())
                yield f"{path.relative_to(ROOT)}:{line}: {' '.join(match[0].split())[:60]!r}: write {word.instead}"


def checked_files() -> list[Path]:
    """Return the product's modules and the documents."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = (Path(name) for name in listed.stdout.splitlines())
    return [ROOT / file for file in files if file.parts[0] not in {"tests", "benchmarks"}]


def main(names: list[str]) -> int:
    words = avoided()
    files = [Path(name).absolute() for name in names] or checked_files()
    lines = [line for file in files for line in complaints(file, words)]
    for line in lines:
        print(line)
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
