"""Starting Ray in this process, or joining a cluster, without what `ray.init` does to a process besides."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({LOOPBACK, "localhost", "::1"})
_LOOK_SECONDS = 0.05


def init(address: str | None, **options: Any) -> None:
    """Call `ray.init`, quietly.

    A new cluster listens on the loopback interface only. This process keeps its signal handlers.

    Args:
        address: Address of a cluster; None starts one.
        options: Further arguments of `ray.init`.
    """
    import ray

    if address is None:
        options["_node_ip_address"] = LOOPBACK
    on_loopback = address is None or _host_of(address) in _LOOPBACK_NAMES

    def start() -> None:
        with _loopback_stays() if on_loopback else contextlib.nullcontext():
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)

    # `ray.init` warns that it cannot take the handler of SIGTERM, which is what is wanted.
    said_by = logging.getLogger("ray._private.worker")
    said_by.addFilter(_is_worth_saying)
    _without_its_signals(start)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return "SIGTERM handler is not set" not in record.getMessage()


def _host_of(address: str) -> str:
    return address.removeprefix("ray://").rpartition(":")[0].strip("[]")


@contextlib.contextmanager
def _loopback_stays() -> Iterator[None]:
    """Keep Ray from turning 127.0.0.1 into the host's address.

    It does so where clusters of several hosts are supported, which this constant says; then all its processes listen on
    every interface. The processes that it starts get the address handed over.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _without_its_signals(start: Callable[[], None]) -> None:
    """Call a function in a thread, so that this process keeps its handlers and Ray's processes survive a terminal.

    In the main thread `ray.init` replaces the handler of SIGTERM by one that exits, and its C++ part replaces it again
    by one that prints a stack and kills the process. SIGHUP is blocked in the thread, and so in the processes that it
    starts: the ranks have to end their epochs when the terminal is closed.
    """
    if threading.current_thread() is not threading.main_thread():
        start()
        return
    raised: list[BaseException] = []
    done, forever = threading.Event(), threading.Event()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            start()
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            raised.append(error)
        done.set()
        if not raised:
            forever.wait()  # Linux kills the processes that a thread has started, as Ray asks it to, when that ends

    handler, interrupted = signal.getsignal(signal.SIGTERM), False
    threading.Thread(target=run, name="ray-init", daemon=True).start()
    while not done.is_set():
        try:
            done.wait(_LOOK_SECONDS)
            signal.signal(signal.SIGTERM, handler)
        except KeyboardInterrupt:  # a half-started cluster could not be ended: its processes would stay
            interrupted = True
    signal.signal(signal.SIGTERM, handler)
    if raised:
        raise raised[0]
    if interrupted:
        raise KeyboardInterrupt
