"""Imports modules once, and is forked for each trial whose command is a Python program.

    python preloaded.py SOCKET ALIVE FOLDER MODULE...

After the imports, this process sends a line of JSON to SOCKET: `why` it cannot be forked, or the variables that modules
looked for and did not find (`lacked`). Each message with six descriptors then requests a fork: the standard streams and
arguments of `supervisor.py`, which runs in the fork and forks the program. This process ends when the other end of the
pipe ALIVE closes. It runs under the command's interpreter, and uses only the standard library.
"""

import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

_MARK = "AUTOML_PROGRAM"
"""Variable whose value in /proc each fork overwrites with a value of the same length."""
_FORK_AWARE = ("jemalloc_bg_thd",)
"""Threads whose libraries allow forks beside them."""
_GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals for which the supervisor sets handlers."""


class _Noting(dict[bytes, bytes]):
    """Environment that records missing variables that were looked up."""

    def __init__(self, given: dict[bytes, bytes]) -> None:
        super().__init__(given)
        self.lacked: set[str] = set()

    def __missing__(self, name: bytes) -> bytes:
        self.lacked.add(os.fsdecode(name))
        raise KeyError(name)


def main() -> None:
    """Import the modules, then fork on request until the owner ends. A fork runs the program."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    alive, folder, modules = int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    _end_with(alive)
    given = dict(one.split(b"=", 1) for one in Path("/proc/self/environ").read_bytes().split(b"\0") if one)
    address_of = ctypes.CDLL(None).getenv
    address_of.restype = ctypes.c_void_p
    mark = address_of(_MARK.encode())
    supervise = runpy.run_path(str(Path(__file__).with_name("supervisor.py")))["supervise"]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    sys.argv, sys.orig_argv[1:] = [""], []
    for number in _HANDLED[:4]:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    said = _imported(modules)
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _HANDLED}
    now = os.environb
    changes = {name: now.get(name) for name in {*given, *now} if now.get(name) != given.get(name)}
    mine = (requests.fileno(), alive)
    kept = {file for file in _open_files() if file not in mine}
    requests.sendall(json.dumps(said).encode() + b"\n")
    while "why" not in said:
        _, files, _, _ = socket.recv_fds(requests, 1, 6)
        if not files:
            break
        pid = os.fork()
        if pid == 0:
            for stream, file in enumerate(files[:3]):
                os.dup2(file, stream)
            for file in mine:
                os.close(file)
            what = supervise(files[3], files[4:], is_preloaded=True)
            for file in _open_files() - kept:
                os.close(file)
            _set_up(what, changes, handlers, mark)
            _run(what["python"])
        for file in files:
            os.close(file)
        os.waitpid(pid, 0)
        requests.sendall(b"{}\n")


def _end_with(alive: int) -> None:
    """Let Linux kill this process when a pipe's other end closes, even if an import hangs."""
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        os.read(alive, 1)
        sys.exit()


def _imported(modules: list[str]) -> dict[str, Any]:
    environments: list[Any] = [os.environ, os.environb]  # they share their content
    noting = environments[0]._data = environments[1]._data = _Noting(environments[1]._data)  # noqa: SLF001
    try:
        for module in modules:
            importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - the command runs without it
        return {"why": f"{module} cannot be imported: {type(error).__name__}: {error}"}
    environments[0]._data = environments[1]._data = dict(noting)  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()  # garbage collection in a fork would copy memory pages
    if (probe := os.fork()) == 0:  # OpenBLAS ends its threads before a fork
        os._exit(0)
    os.waitpid(probe, 0)
    tasks = Path("/proc/self/task")
    if any(children.read_text().strip() for children in tasks.glob("*/children")):
        return {"why": f"importing {', '.join(modules)} starts processes"}
    threads = [(task / "comm").read_text().strip() for task in tasks.iterdir() if task.name != str(os.getpid())]
    if alien := [name for name in threads if name not in _FORK_AWARE]:
        return {"why": f"importing {', '.join(modules)} starts threads ({', '.join(alien)})"}
    for file in _open_files():
        with contextlib.suppress(OSError):
            if (name := str(Path(f"/proc/self/fd/{file}").readlink())).startswith(_GPU_FILES):
                return {"why": f"importing {', '.join(modules)} opens a GPU ({name})"}
    return {"lacked": sorted(noting.lacked)}


def _open_files() -> set[int]:
    paths = list(Path("/proc/self/fd").iterdir())
    return {int(path.name) for path in paths if path.exists()}  # the descriptor of the listing is closed


# ---------------------------------------------------------------------- in a fork that is the program


def _set_up(what: dict[str, Any], changes: dict[bytes, Any], handlers: dict[int, Any], mark: int) -> None:
    """Make this process like a new interpreter. `changes`: the imports' changes to the environment."""
    os.environ.clear()
    os.environ.update(what["environment"])
    for name, value in changes.items():
        os.environb.pop(name, None) if value is None else os.environb.__setitem__(name, value)
    ctypes.memmove(mark, os.environb[_MARK.encode()], len(os.environb[_MARK.encode()]))
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)
    # Python seeds its own generator in each fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    sys.orig_argv[:] = what["argv"]


def _run(python: list[str]) -> NoReturn:
    """Run `python`, such as ["", "train.py", "--lr", "0.1"] or ["-m", "train"], and exit like an interpreter."""
    how, *sys.argv = python
    if how:
        sys.argv[0] = how
    own = types.ModuleType("__main__")
    own.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = own
    try:
        if how == "-m":
            runner: Any = runpy
            runner._run_module_as_main(python[1])  # noqa: SLF001 - what `python -m` calls
        elif how == "-c":
            exec(compile(python[1], "<string>", "exec", dont_inherit=True), own.__dict__)  # noqa: S102 - its purpose
        else:
            path = os.path.join(Path.cwd(), python[1])  # noqa: PTH118 - keeps "./", as Python does
            own.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, own.__dict__)  # noqa: S102 - its purpose
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.excepthook = lambda *_: None
        raise
    sys.exit()


if __name__ == "__main__":
    main()
