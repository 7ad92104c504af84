"""YAML for specs: safe loading, no repeated keys, `1e-4` as a number, no ambiguous numbers."""

import itertools
import math
import re
from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any

import yaml

from search_spaces.messages import cut, near_file, one_line, shown
from studies.spec.spec_errors import Path, SpecError

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_MERGE = "tag:yaml.org,2002:merge"
_STRING = "tag:yaml.org,2002:str"

MOST_NESTED = 120  # deepest nesting of values in a document
_LONGEST = 1_000_000
"""Longest document, in characters with aliases written out: ten lines can expand to billions."""

# YAML 1.2's floats. PyYAML reads YAML 1.1, in which `1e-4` and `5e3` are strings.
_FLOAT_1_2 = re.compile(
    r"""^[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?
            |\.[0-9]+(?:[eE][-+]?[0-9]+)?
            |[0-9]+[eE][-+]?[0-9]+
            |\.(?:inf|Inf|INF))$
       |^\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)


# Texts that some version of YAML reads as a whole number. PyYAML also computes `1_000` and `0b101`.
_AMBIGUOUS = r"0o?[0-9_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+"  # 016: 14 or 16 or text; 1:30: 90 or text
_INT_OF_ANY = re.compile(rf"^[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+|{_AMBIGUOUS})$")
_INT_OF_ONE = re.compile(rf"[-+]?(?:{_AMBIGUOUS})")


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, which is ten times faster, if PyYAML was built with it."""


class _Reader(_Loader):  # type: ignore[misc]
    """PyYAML's safe loader with YAML 1.2's numbers and without dates."""


class _Writer(yaml.SafeDumper):
    """PyYAML's safe dumper with quotes around texts that `_Reader` would read as numbers."""


def _text_node(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Escape the next-line character, which PyYAML would fold."""
    return writer.represent_scalar(_STRING, text, style='"' if "\x85" in text else None)


_Writer.add_representer(str, _text_node)


_Reader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_TIMESTAMP, _FLOAT, _INT}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _form in (_Reader, _Writer):
    _form.add_implicit_resolver(_FLOAT, _FLOAT_1_2, list("-+0123456789."))
    _form.add_implicit_resolver(_INT, _INT_OF_ANY, list("-+0123456789"))


def write_yaml(value: object, *, on_one_line: bool = False) -> str:
    """Return plain values as YAML for `read_yaml`, without breaking long lines."""
    text: str = yaml.dump(
        value, Dumper=_Writer, default_flow_style=on_one_line, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text


def read_yaml_file(path: FilePath) -> object:
    """Read a YAML file. Raises SpecError if it is unreadable or invalid."""
    allowed = "Name a readable YAML file"
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)  # a device may never end
    except UnicodeDecodeError:
        raise SpecError(str(path), (), f"the file is not UTF-8 text. {allowed}") from None
    except FileNotFoundError:
        raise SpecError(str(path), (), f"no such file{near_file(path) or f'. {allowed}'}") from None
    except IsADirectoryError:
        raise SpecError(str(path), (), f"this is a folder. {allowed}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(str(path), (), f"the file cannot be read ({reason.lower()}). {allowed}") from None
    return read_yaml(text, source=str(path))


def read_yaml(text: str, source: str) -> object:
    """Read one YAML document; None if it is empty. Raises SpecError if it is invalid, too long or ambiguous."""
    try:
        _check_depth(text, source)
        loader = _Reader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_size(node, source)
            _check_keys_and_numbers(node, source)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.splitlines()  # libyaml counts a line after the end
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        where = f" at the end of line {len(lines)}" if mark and mark.line >= len(lines) else where
        raise _unreadable(source, f"{error.problem or error.context}{where}") from None
    except RecursionError:
        raise _unreadable(source, "values nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors raise Python's errors, for instance for `!!int x` or a number that is too long.
        raise _unreadable(source, str(error).partition("\n")[0] or type(error).__name__) from None


def _check_depth(text: str, source: str) -> None:
    """Raise SpecError for a text that is too long, or so deeply nested that libyaml could crash."""
    if len(text) > _LONGEST:
        raise SpecError(source, (), f"found more than {_LONGEST:,} characters. Write a shorter document")
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_NESTED:
            raise _unreadable(source, "values nested too deeply")


def _unreadable(source: str, reason: str) -> SpecError:
    return SpecError(source, (), f"the text is not YAML ({' '.join(reason.split())}). Correct it")


def _check_size(root: yaml.Node, source: str) -> None:
    sizes: dict[int, int | None] = {}  # sizes of nodes with their aliases written out; None while being counted

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = None
            length = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            sizes[id(node)] = min(1 + sum(map(size, _children(node)), length), _LONGEST + 1)
        counted = sizes[id(node)]
        if counted is None:
            raise _unreadable(source, f"a value that contains itself, in line {node.start_mark.line + 1}")
        return counted

    if size(root) > _LONGEST:
        problem = f"found more than {_LONGEST:,} characters with aliases written out. Write a shorter document"
        raise SpecError(source, (), problem)


def _children(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return itertools.chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _check_keys_and_numbers(root: yaml.Node, source: str) -> None:
    waiting: list[tuple[yaml.Node, Path]] = [(root, ())]
    seen: set[int] = set()  # an alias leads to the same node again
    while waiting:
        node, path = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend((child, (*path, index)) for index, child in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            _check_own_keys(node, path, source)
            waiting.extend((child, (*path, key.value)) for key, child in node.value)
        elif node.tag == _INT and _INT_OF_ONE.fullmatch(node.value):
            problem = (
                f"found {cut(one_line(node.value))} in line {node.start_mark.line + 1}, which YAML versions read "
                "differently. Write the number without a leading zero or colon, or put text in quotes"
            )
            raise SpecError(source, path, problem)


def _check_own_keys(node: yaml.MappingNode, path: Path, source: str) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.tag == _MERGE:
            continue
        if not isinstance(key, yaml.ScalarNode) or key.tag != _STRING:
            text = f"the key {shown(key.value)}" if isinstance(key, yaml.ScalarNode) else "a list or mapping as a key"
            problem = f"found {text} in line {line}, which YAML does not read as text. Put the key in quotes"
            raise SpecError(source, path, problem)
        if key.value in lines:
            problem = f"found the key {shown(key.value)} in line {line} and in line {lines[key.value]}. Give it once"
            raise SpecError(source, (*path, key.value), problem)
        lines[key.value] = line
