"""Runs an ONNX file in a separate process, because a hostile file can crash ONNX Runtime or fill the memory.

This file is also the program of the process. Messages have a kind (one byte), a length and a content: JSON, or arrays
in numpy's format. Neither side unpickles anything.
"""

import importlib.util
import io
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, cast

ARRAYS, LAST_PLACES, NOTES, FAILURE = b"A", b"L", b"N", b"F"
"""Kinds of messages. `LAST_PLACES` asks only for the outputs at each row's last position."""
MOST_ANSWER_BYTES = 512 * 2**20
OLDEST = 1, 24  # first version of ONNX Runtime that reads external data only from the folder of the .onnx file
_HEAD = struct.Struct("<cQ")


class OnnxRuntimeError(Exception):
    """ONNX Runtime refused a file or its inputs, or its process ended."""


class OnnxProcess:
    """A process that runs one ONNX file, started on first use. Raises OnnxRuntimeError if loading or running fails.

    It may use half of the machine's memory, and ends with this process.
    """

    def __init__(self, path: str) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")
        self._path, self._lock = path, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def notes(self) -> dict[str, str]:
        """Return the file's texts beside the model, by name."""
        return dict(json.loads(self._asked(NOTES, b"")))

    def outputs(self, inputs: Sequence[Any], *, last: bool = False) -> list[Any]:
        """Return all outputs for numpy arrays; with `last`, only at each row's last position."""
        return _arrays(self._asked(LAST_PLACES if last else ARRAYS, _written(inputs)))

    def _asked(self, kind: bytes, content: bytes) -> bytes:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _started(self._path)
                weakref.finalize(self, _end, self._process)
            asking, answering = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout))
            try:
                _send(asking, kind, content)
                kind, content = _received(answering)
            except (EOFError, BrokenPipeError):
                code = self._process.wait()
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
                raise OnnxRuntimeError(f"ONNX Runtime ended {how}. Is the file damaged, or very large?") from None
        if kind == FAILURE:
            raise OnnxRuntimeError(json.loads(content))
        return content


def _started(path: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-S", __file__, path]  # -S: `paths` already has the folders that `site` would add
    paths = os.pathsep.join(one for one in sys.path if one)
    return subprocess.Popen(  # noqa: S603 - this file, by this Python
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,  # Ctrl-C is for the server, which drains
    )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr]


def _send(file: IO[bytes], kind: bytes, content: bytes) -> None:
    file.write(_HEAD.pack(kind, len(content)))
    file.write(content)
    file.flush()


def _received(file: IO[bytes]) -> tuple[bytes, bytes]:
    """Return kind and content of the next message. Raises EOFError at the end."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    kind, length = _HEAD.unpack(head)
    if len(content := file.read(length)) < length:
        raise EOFError
    return kind, content


def _written(arrays: Sequence[Any]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    for one in arrays:
        np.save(file, one, allow_pickle=False)
    return file.getvalue()


def _arrays(content: bytes) -> list[Any]:
    import numpy as np

    file, found = io.BytesIO(content), []
    while file.tell() < len(content):
        found.append(np.load(file, allow_pickle=False))
    return found


def _answer_messages(path: str) -> None:
    messages: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that output of libraries does not mix with answers
    threading.Thread(target=_read_all, args=(messages,), daemon=True).start()
    session: Any = None
    with os.fdopen(own, "wb") as answers:
        while True:
            kind, content = messages.get()
            try:
                if session is None:
                    with suppress(ImportError, ValueError, OSError):  # not every system has this limit
                        import resource

                        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
                        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
                    session = _session(path)
                reply = kind, _reply(session, kind, content)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises types of its own
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                reply = FAILURE, json.dumps(reason[:1000]).encode()
            _send(answers, *reply)


def _read_all(messages: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
    """Read messages in a thread, so that the process ends even while the model computes."""
    with suppress(EOFError):
        while True:
            messages.put(_received(sys.stdin.buffer))
    os._exit(0)


def _session(path: str) -> Any:
    import onnxruntime

    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < OLDEST:
        raise ImportError(
            f"onnxruntime {onnxruntime.__version__} is not safe: an .onnx file can make it read any other file. "
            f"Install version {OLDEST[0]}.{OLDEST[1]} or later"
        )
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _reply(session: Any, kind: bytes, content: bytes) -> bytes:
    if kind == NOTES:
        return json.dumps(dict(session.get_modelmeta().custom_metadata_map)).encode()
    names = [one.name for one in session.get_inputs()]
    outputs = session.run(None, dict(zip(names, _arrays(content), strict=True)))
    if kind == LAST_PLACES:
        outputs = [one[:, -1] for one in outputs]
    if (size := sum(one.nbytes for one in outputs)) > MOST_ANSWER_BYTES:
        raise ValueError(f"the outputs of these rows have {size:,} bytes, more than the allowed {MOST_ANSWER_BYTES:,}")
    return _written(outputs)


if __name__ == "__main__":
    _answer_messages(sys.argv[1])
