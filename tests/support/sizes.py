"""Sizes of tests, which fail where a test passes its size or leaves a process behind.

| size | processor time | processes |
|---|---|---|
| small | 1 s | none |
| medium | 10 s | as many as it needs |
| large | 60 s | as many as it needs |

A test is small unless a marker or a fixture says otherwise. What counts is the processor time of the test's process
and all that it has started, not the clock, and a test fails at several times its size: a busy machine is no defect.
Fixtures that tests share, and the first import of a heavy library, are not counted.

`AUTOML_TESTS_SIZES=hold pytest ...` lets tests fail that pass their size or leave a process behind.
`AUTOML_TESTS_SIZES=FILE pytest ...` writes down what each test needed, and `python -m tests.support.sizes FILE` marks
the tests that need more than their size. It takes no mark away.
"""

import ast
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

SECONDS = {"small": 1.0, "medium": 10.0, "large": 60.0}
TOLERANCE = 5
"""A cold cache, a busy neighbour and a slower machine make processor time longer, too."""
STARTING = frozenset({"browser", "object_store", "postgres_process", "postgres_server", "postgres_url", "ranks",
                      "ray_address", "shared_pool", "warm_pool"})  # fmt: skip
"""Fixtures with processes that tests share: their tests are medium at least."""
HEAVY = (
    "keras", "lightning", "mlflow", "onnx", "optuna", "plotly", "ray", "sklearn", "torch", "transformers", "xgboost",
)  # fmt: skip
LEFT_SECONDS = 20.0
"""How long what a test has started may take to end."""
_OWNER = "AUTOML_TESTS_STARTED_BY"
_SHARED = (
    "bin/postgres", "compile_worker", "crashpad", "multiprocessing.forkserver", "preloaded.py", "resource_tracker",
)  # fmt: skip
"""Processes of Python, torch, PostgreSQL, Chromium and ours that outlive whoever first needed them."""
_TICKS = os.sysconf("SC_CLK_TCK")


def size_of(item: pytest.Item) -> str:
    """The size of a test by its nearest marker, else by its fixtures."""
    for marker in item.iter_markers():
        if marker.name in SECONDS:
            return marker.name
    return "medium" if STARTING & set(getattr(item, "fixturenames", ())) else "small"


def mark_with_size(item: pytest.Item) -> None:
    """Let `-m small` choose by size."""
    size = size_of(item)
    if item.get_closest_marker(size) is None:
        item.add_marker(size)


class Sizes:
    """A plugin of pytest that holds every test to its size, or writes down what each test needs."""

    def __init__(self, record: Path | None) -> None:
        os.environ[_OWNER] = str(os.getpid())
        self._record = record
        self._shared: set[int] = set()
        self._not_counted = 0.0
        self._depth = 0
        self._reaped = _reaped()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Take what shared fixtures cost and start off the account of the test that happens to need them first."""
        if fixturedef.scope == "function" or self._depth:
            return (yield)
        self._depth += 1
        began, reaped = processor_seconds(), _reaped()
        try:
            return (yield)
        finally:
            self._depth -= 1
            self._not_counted += processor_seconds() - began
            self._shared |= set(_children(os.getpid()))
            if self._reaped == reaped:  # the test itself has started nothing before
                self._reaped = _reaped()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Begin the account of a test."""
        children = frozenset(_children(os.getpid()))
        item.stash[_STARTED] = (processor_seconds(), children, frozenset(sys.modules))
        self._not_counted, self._reaped = 0.0, _reaped()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Hold the test against its size, and look for what it has left."""
        began, children, modules = item.stash[_STARTED]
        # Before shared fixtures end what they have started.
        started = _reaped() != self._reaped or bool(set(_children(os.getpid())) - children - self._shared)
        done = yield
        size = size_of(item)
        seconds = processor_seconds() - began - self._not_counted
        if self._record is not None:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(f"{item.nodeid}\t{seconds:.2f}\t{int(started)}\n")
            return done
        if started:
            self._fail_for_what_is_left()
        if size == "small" and started and not STARTING & set(getattr(item, "fixturenames", ())):
            pytest.fail("a small test has started a process: mark it medium or large", pytrace=False)
        is_first = any(name in sys.modules and name not in modules for name in HEAVY)
        if seconds > TOLERANCE * SECONDS[size] and not is_first and item.get_closest_marker("slow") is None:
            pytest.fail(f"a {size} test took {seconds:.0f} s of processor time: see {__name__}", pytrace=False)
        return done

    def _fail_for_what_is_left(self) -> None:
        deadline = time.monotonic() + LEFT_SECONDS
        while left := dict(self._left()):
            if time.monotonic() > deadline:
                self._shared |= set(left)  # the tests behind it have not left them
                pytest.fail(f"the test has left processes: {left}", pytrace=False)
            time.sleep(0.1)

    def _left(self) -> Iterator[tuple[int, str]]:
        """Processes that this one has started, or what it has started, but for those that tests share."""
        owner = f"{_OWNER}={os.getpid()}".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if owner not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has ended, or is somebody else's
                continue
            if command and not any(word in command for word in _SHARED) and not self._is_shared(int(folder.name)):
                yield int(folder.name), command[:200]

    def _is_shared(self, pid: int) -> bool:
        while pid > 1:
            if pid in self._shared:
                return True
            fields = _fields(pid)
            pid = int(fields[1]) if fields else 0
        return False


_STARTED = pytest.StashKey[tuple[float, frozenset[int], frozenset[str]]]()


def processor_seconds() -> float:
    """Processor time of this process and of all that it has started, ended ones as well."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += sum(map(int, _fields(pid)[11:15]))
        waiting += _children(pid)
    return total / _TICKS


def _reaped() -> tuple[float, int]:
    """What changes whenever a child has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_minflt


def _fields(pid: int) -> list[str]:
    """The fields of a process's `stat` behind its name; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - it is called for every test
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="utf-8").split())
    except OSError:  # it has ended meanwhile
        pass
    return found


def wanted_sizes(record: str) -> dict[Path, dict[str, str]]:
    """The smallest size of each recorded test function, by file and name; that of its most expensive case."""
    found: dict[Path, dict[str, str]] = defaultdict(dict)
    for line in record.splitlines():
        test, seconds, started = line.rsplit("\t", 2)
        path, _, rest = test.partition("::")
        name, order = rest.partition("[")[0].rpartition("::")[2], list(SECONDS)
        fits = (size for size in order if float(seconds) < 0.7 * SECONDS[size] and (size != "small" or started == "0"))
        size = next(fits, order[-1])
        found[Path(path)][name] = max(size, found[Path(path)].get(name, "small"), key=order.index)
    return found


def mark(text: str, sizes: Mapping[str, str]) -> str:
    """Mark the test functions of a module that are larger than what they are marked with."""
    lines, order = text.splitlines(keepends=True), list(SECONDS)
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: -getattr(node, "lineno", 0)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name not in sizes:
            continue
        marks = {ast.unparse(one).removeprefix("pytest.mark.") for one in node.decorator_list} & set(order)
        size = sizes[node.name]
        usual = "medium" if STARTING & {one.arg for one in node.args.args} else "small"
        if size in (usual, "small") or any(order.index(one) >= order.index(size) for one in marks):
            continue
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
        old = [f"@pytest.mark.{one}\n" for one in marks]
        head = [line for line in lines[first : node.lineno] if line.strip() + "\n" not in old]
        lines[first : node.lineno] = [f"{' ' * node.col_offset}@pytest.mark.{size}\n", *head]
    found = "".join(lines)
    if "import pytest" not in found and found != text:
        future = "from __future__ import annotations\n"
        found = found.replace(future, f"{future}\nimport pytest\n", 1)  # `ruff check --fix` finds its place
    return found


if __name__ == "__main__":
    for file, named in wanted_sizes(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        if file.exists():
            file.write_text(mark(file.read_text(encoding="utf-8"), named), encoding="utf-8")
