"""Relations between parameters, such as `layers * width <= 4096`, which every configuration satisfies."""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.messages import found, listed, nearest, shown
from search_spaces.parameters import SpaceError, Value

LONGEST = 500
_EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_LOGIC = (ast.Compare, ast.BoolOp, ast.boolop, ast.Not, *_EQUALITY, *_ORDER, ast.List, ast.Tuple)
_ARITHMETIC = (
    ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub,
    ast.Name, ast.Constant, ast.Load,
)  # fmt: skip
_ALLOWED = "a comparison of parameters, such as layers * width <= 4096, or several joined by and, or, not"


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of parameters in Python's syntax, without calls. Relations of equal text are equal."""

    text: str
    names: frozenset[str] = field(compare=False)
    _numbers: frozenset[str] = field(compare=False, repr=False)  # names that are computed with
    _code: Any = field(compare=False, repr=False)  # compiled; pydantic has no schema of code

    @classmethod
    def of(cls, text: object, known: Mapping[str, Collection[str]]) -> "Relation":
        """Parse a relation. `known` has the choices of each parameter as texts. Raises SpaceError if invalid."""
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
            raise SpaceError(found(text, _ALLOWED))
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise SpaceError(f"found {shown(text)}, which is not an expression. Write {_ALLOWED}") from None
        names = {node.id for node in ast.walk(tree.body) if isinstance(node, ast.Name)}
        if unknown := sorted(names - set(known)):
            wrong = found(unknown[0], listed(known), nearest(unknown[0], known))
            quoted = ". Put a text in quotes" if any(unknown[0] in choices for choices in known.values()) else ""
            raise SpaceError(f"{shown(text)}: {wrong}{quoted}")
        is_comparison = isinstance(tree.body, ast.Compare | ast.BoolOp) or _is_not(tree.body)
        nodes = list(_nodes(tree.body))
        if not is_comparison or not names or not all(_is_allowed(node, computed) for node, computed in nodes):
            raise SpaceError(found(text, _ALLOWED))
        for wrong, choices in _no_choices(tree, known):
            raise SpaceError(f"{shown(text)}: {found(wrong, listed(choices), nearest(wrong, choices))}")
        numbers = {node.id for node, computed in nodes if computed and isinstance(node, ast.Name)}
        for node, _ in nodes:
            if isinstance(node, ast.Constant) and type(node.value) is int:
                try:  # too large a float is an error, too large a whole number takes forever
                    node.value = float(node.value)
                except OverflowError:
                    raise SpaceError(f"{shown(text)}: {found(node.value, 'numbers up to 1.8e308')}") from None
        return cls(text.strip(), frozenset(names), frozenset(numbers), compile(tree, "constraint", "eval"))

    def holds(self, params: Mapping[str, Value]) -> bool:
        """Return whether a configuration satisfies the relation. True if a parameter of it does not exist.

        A relation that cannot be computed, as in a division by zero, is not satisfied.
        """
        if not all(name in params for name in self.names):
            return True
        values = {name: _as_float(params[name]) for name in self.names}
        if not all(isinstance(values[name], float) for name in self._numbers):
            return False
        try:
            return bool(eval(self._code, {"__builtins__": {}}, values))  # noqa: S307 - comparisons and arithmetic only
        except (ArithmeticError, TypeError):
            return False


def _no_choices(tree: ast.AST, known: Mapping[str, Collection[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each text that is compared with a parameter without such a choice, and the existing choices."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not all(isinstance(one, _EQUALITY) for one in node.ops):
            continue
        sides = [node.left, *node.comparators]
        named = [known[one] for one in dict.fromkeys(side.id for side in sides if isinstance(side, ast.Name))]
        parts = [part for one in sides for part in (one.elts if isinstance(one, ast.List | ast.Tuple) else [one])]
        is_part_of_text = isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(sides[-1], ast.Name)
        if any(named) and not is_part_of_text:
            texts = [one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            wrong = [one for one in texts if not any(one in choices for choices in named)]
            yield from ((one, [choice for choices in named for choice in choices]) for one in wrong)


def _as_float(value: Value) -> Value:
    return value if value is None or isinstance(value, str | bool) else float(value)


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _nodes(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node, and whether it is an arithmetic operator or an operand."""
    waiting = [(root, False)]
    while waiting:
        node, computed = waiting.pop()
        computed = computed or (isinstance(node, ast.BinOp | ast.UnaryOp) and not _is_not(node))
        yield node, computed
        waiting += [(inner, computed) for inner in ast.iter_child_nodes(node)]


def _is_allowed(node: ast.AST, computed: bool) -> bool:
    if computed:
        return isinstance(node, _ARITHMETIC) and type(getattr(node, "value", 0)) in {int, float}
    is_plain = not isinstance(node, ast.Constant) or isinstance(node.value, str | int | float | None)
    return isinstance(node, (*_LOGIC, *_ARITHMETIC)) and is_plain
