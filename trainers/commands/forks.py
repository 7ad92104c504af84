"""Starts Python programs as forks of processes that have already imported modules (`preloaded.py`)."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PRELOADED = Path(__file__).with_name("preloaded.py")
_MOST = 3
"""Limit of kept processes, each of which needs the memory of its modules."""
_PYTHON = re.compile(r"python[\d.]*")
_READ_BY_LIBRARIES = re.compile(
    "LD_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_|NUMEXPR_|VECLIB_|MALLOC_|GLIBC_|PYTHON|LANG|LC_|TZ|PATH|HOME|TMPDIR|TORCH|PYTORCH_"
    "|ATEN_|DNNL_|ONEDNN_|CUBLAS_|CUDNN_|NCCL_|CUDA_(?!VISIBLE)"
)
"""Variables that interpreters and libraries may read at loading, without Python's `os.environ`."""
MARK = "AUTOML_PROGRAM"
"""Environment variable that marks a program's processes, to kill them if their supervisor dies."""


class Fork:
    """A Python program to run in a fork of a process that has imported its modules.

    Args:
        changing: Variables that differ between trials. Modules are imported without them, unless they look for them.
        has_own_folder: The folder also differs between trials. Modules are then imported beside the script.
    """

    def __init__(
        self,
        modules: tuple[str, ...],
        argv: list[str],
        environment: dict[str, str],
        folder: str,
        changing: frozenset[str],
        *,
        has_own_folder: bool = False,
    ) -> None:
        self._modules, self._argv, self._environment, self._folder = modules, argv, environment, folder
        self._changing = frozenset(name for name in changing if not _READ_BY_LIBRARIES.match(name))
        self._has_own_folder = has_own_folder
        self._awaited: _Process | None = None
        self._is_given_up = False
        self.python, self._why = self._understood()

    def _understood(self) -> tuple[list[str], str]:
        """Return the part of the command line that a fork can run, or the reason why a fork cannot."""
        program, *rest = self._argv
        path = str(Path(self._folder, program)) if "/" in program else program
        found = shutil.which(path, path=self._environment.get("PATH"))
        if found is None or not _PYTHON.fullmatch(Path(found).name):
            return [], f"the program {program} is not python"
        if rest[:1] == ["-u"]:  # as PYTHONUNBUFFERED, which each command has
            rest = rest[1:]
        if rest[:1] in (["-m"], ["-c"]) and rest[1:]:
            return ([], f"{rest[0]} imports from each trial's own folder") if self._has_own_folder else (rest, "")
        if not rest or rest[0].startswith("-"):
            return [], f"python is started with {' '.join(rest[:1]) or 'no program'}"
        script = Path(self._folder, rest[0])
        if not script.is_file() or zipfile.is_zipfile(script):
            return [], f"{rest[0]} is not a file of Python code"
        return ["", *rest], ""

    def begin(self, descriptors: Sequence[int], on_output: Callable[[bytes], object]) -> str | None:
        """Fork once the modules are imported. Returns None, or the reason why no fork is possible.

        Args:
            descriptors: File descriptors of the supervisor's standard streams and arguments.
            on_output: Called with the output of importing modules.
        """
        if self._why:
            return self._why
        with _lock:
            while not self._is_given_up:
                try:
                    self._awaited = process = self._process()
                except OSError as error:
                    return f"no process can be started ({error})"
                if self._is_given_up:  # `give_up` found no process to kill
                    process.end()
                    break
                said = process.hear(on_output)
                if self._is_given_up:
                    process.end()
                elif "why" in said:
                    return str(said["why"])
                else:
                    _lacked.update(said["lacked"])
                    if self._key() == process.key:
                        return process.fork(descriptors)
        return None

    def _key(self) -> tuple[object, ...]:
        how, program = self.python[:2]
        folder = Path(self._folder).resolve()
        imports_from = {"-m": str(folder), "-c": ""}.get(how, str((folder / program).resolve().parent))
        paths = self._environment.get("PYTHONPATH", "")
        is_fixed = not paths or all(Path(path).is_absolute() for path in paths.split(os.pathsep))  # "" is the folder
        works_in = imports_from if self._has_own_folder and is_fixed else str(folder)
        environment = {
            name: value for name, value in self._environment.items() if name not in self._changing or name in _lacked
        }
        return self._argv[0], self._modules, imports_from, works_in, tuple(sorted(environment.items()))

    def _process(self) -> "_Process":
        key = self._key()
        process = next((one for one in _kept if one.key == key), None) or _Process(*key)
        _kept[:] = [*(one for one in _kept if one is not process), process]
        for oldest in _kept[:-_MOST]:
            oldest.end()
        return process

    @property
    def importing(self) -> int | None:
        """Id of the process that is importing modules, or None."""
        return None if self._awaited is None or self._awaited.said else self._awaited.process.pid

    def give_up(self) -> None:
        """Let `begin` return, even if an import hangs."""
        self._is_given_up = True
        if self.importing is not None and self._awaited is not None:
            self._awaited.process.kill()


class _Process:
    def __init__(self, *key: Any) -> None:
        program, modules, imports_from, works_in, environment = self.key = key
        self._requests, theirs = socket.socketpair()
        alive, self._alive = os.pipe()
        self._output, prints = os.pipe()
        self.said: dict[str, Any] = {}
        arguments = [program, _PRELOADED, str(theirs.fileno()), str(alive), imports_from, *modules]
        try:
            self.process = subprocess.Popen(  # noqa: S603 - as the command does
                arguments, env={**dict(environment), MARK: "0" * 32}, cwd=works_in, stdin=subprocess.DEVNULL,
                stdout=prints, stderr=prints, pass_fds=(theirs.fileno(), alive), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.forget()
            raise
        finally:
            theirs.close()
            os.close(alive)
            os.close(prints)

    def hear(self, on_output: Callable[[bytes], object]) -> dict[str, Any]:
        """Return the process's message after its imports, or the reason why it ended."""
        last = b""
        while not self.said:
            files: list[Any] = [self._requests, self._output]
            ready, _, _ = select.select(files, [], [])
            if self._output in ready and (chunk := os.read(self._output, 2**16)):
                on_output(chunk)
                last = (last + chunk)[-1000:]
            elif self._requests in ready:
                line = self._line()
                words = (last.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
                self.said = json.loads(line) if line else {"why": f"the process that imports ended ({words})"}
                if "why" in self.said:
                    with suppress(ProcessLookupError):
                        os.killpg(self.process.pid, signal.SIGKILL)  # with processes that modules have started
                    self.process.kill()
                    self.process.wait()
        return self.said

    def fork(self, descriptors: Sequence[int]) -> str | None:
        try:
            socket.send_fds(self._requests, [b"f"], descriptors)
        except OSError:
            self.end()
            return "the process with the imported modules was killed"
        if not self._line():  # the supervisor reports whether it forked
            self.end()
        return None

    def _line(self) -> bytes:
        with suppress(OSError):
            return self._requests.makefile("rb").readline()
        return b""

    def end(self) -> None:
        """Kill this process. Only the thread that holds the lock may call this."""
        _kept.remove(self)
        self.process.kill()
        self.process.wait()
        self.forget()

    def forget(self) -> None:
        self._requests.close()
        for end in self._alive, self._output:
            os.close(end)


_kept: list[_Process] = []
"""Kept processes, least recently used first, even processes that cannot be forked, to avoid new attempts."""
_lacked: set[str] = set()
"""Variables that imported modules looked for and did not find."""
_lock = threading.Lock()


def _forget_all() -> None:
    """Forget the kept processes in a fork: they belong to its parent."""
    global _lock  # noqa: PLW0603 - another thread may have it
    _lock = threading.Lock()
    for process in _kept:
        process.forget()
    _kept.clear()


os.register_at_fork(after_in_child=_forget_all)
