"""A process that has loaded torch once, and is forked for each question about a task.

`automl` asks tasks and checks specs in processes of their own, each of which loads torch for some seconds. In tests
such a process is a fork of one that has it loaded: `python preloaded.py SOCKET ARGUMENTS` is a program as
`python ARGUMENTS` is, with the same output, exit code and signals.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SERVE = "serve"
_PRELOADED = (
    "torch", "torch.utils.data", "torch.export", "numpy", "pydantic", "sqlalchemy", "trainers.contract.task_loading",
    "trainers.model.network", "trainers.contract.training_function", "studies.spec.study_spec",
)  # fmt: skip
_LONGEST = 2**22


class Preloaded(Sequence[str]):
    """The command that runs a program in a fork of a process that is started at its first use."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __iter__(self) -> Iterator[str]:
        yield from (sys.executable, "-S", "-E", __file__, _served_at(), *self._arguments)

    def __len__(self) -> int:
        return 5 + len(self._arguments)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


_servers: dict[int, subprocess.Popen[bytes]] = {}
"""The server of each process, which is one unless it was forked."""


_starting = threading.Lock()


def _served_at() -> str:
    address = f"automl-tests-{os.getpid()}"
    with _starting:
        if os.getpid() not in _servers:
            _servers[os.getpid()] = _started(address)
    return address


def _started(address: str) -> subprocess.Popen[bytes]:
    alive, _ours = os.pipe()  # it ends when the pipe closes, with this process
    is_ready, ready = os.pipe()
    command = [sys.executable, "-P", __file__, SERVE, address, str(alive), str(ready)]
    server = subprocess.Popen(command, pass_fds=[alive, ready], stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(alive)
    os.close(ready)
    os.read(is_ready, 1)  # or its end, where the server could not start
    os.close(is_ready)
    return server


def _serve(name: str, alive: int, ready: int) -> None:
    import importlib
    import selectors

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(64)
    for module in _PRELOADED:
        importlib.import_module(module)
    os.close(ready)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ, "new")
    waiting.register(alive, selectors.EVENT_READ, "end")
    running: dict[int, tuple[int, int, socket.socket]] = {}
    while True:
        for key, _ in waiting.select():
            if key.data == "end":
                for pid, _, _ in running.values():
                    _kill(pid)
                return
            if key.data == "new":
                connection, _ = listener.accept()
                pid = _forked(connection, [listener.fileno(), alive])
                process = os.pidfd_open(pid)
                one = (pid, process, connection)
                running[process] = running[connection.fileno()] = one
                waiting.register(process, selectors.EVENT_READ, process)
                waiting.register(connection, selectors.EVENT_READ, process)
            elif key.data in running:
                pid, process, connection = running[key.data]
                if key.fd != process:  # whoever asked was killed
                    _kill(pid)
                _, status = os.waitpid(pid, 0)
                for file in (process, connection):
                    waiting.unregister(file)
                del running[process], running[connection.fileno()]
                with contextlib.suppress(OSError):
                    connection.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
                connection.close()
                os.close(process)


def _kill(pid: int) -> None:
    """End a program and what it has started, as whoever kills its group means to."""
    for kill in (os.killpg, os.kill):  # it may not have a group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _forked(connection: socket.socket, ours: Sequence[int]) -> int:
    """Fork a process that does what was asked for; returns its id."""
    files = array.array("i")
    text, ancillary, _, _ = connection.recvmsg(_LONGEST, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, data in ancillary:
        files.frombytes(data)
    (length,) = struct.unpack("i", text[:4])
    while len(text) < length + 4:
        text += connection.recv(_LONGEST)
    asked = json.loads(text[4:])
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    for target, file in enumerate(files):
        os.dup2(file, target)
    for file in (*files, *ours, connection.detach()):
        os.close(file)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    code = 1
    try:
        _run(asked["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter that ends
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str]) -> None:
    """Run what stands behind `-m`, without the working folder on the path where `-P` comes first."""
    import runpy

    if arguments[0] == "-P":
        arguments = arguments[1:]
    else:
        sys.path.insert(0, str(Path.cwd()))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in given if folder and folder not in sys.path]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = [arguments[1], *arguments[2:]]
    sys.modules.pop(arguments[1], None)
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def _ask(name: str, arguments: list[str]) -> int:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(f"\0{name}")
    text = json.dumps({"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}).encode()
    files = array.array("i", [0, 1, 2])
    whole = struct.pack("i", len(text)) + text
    sent = server.sendmsg([whole], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(whole[sent:])
    answer = server.recv(4)
    code = struct.unpack("i", answer)[0] if answer else 1
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return int(code)


if __name__ == "__main__":
    if sys.argv[1] == SERVE:
        _serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
