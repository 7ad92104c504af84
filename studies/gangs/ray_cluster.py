"""Joins or starts a Ray cluster, and counts its slots."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from studies.gangs.node_watch import slots_of_nodes
from studies.gangs.pool_protocol import PoolError
from studies.storage.leases.processes import started_at

_VITAL = ("raylet", "gcs_server")
"""Processes whose end kills a local cluster; Ray notices this only after minutes, or never."""


class OwnCluster:
    """The processes of a Ray cluster that this process started."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, int], float] = {}
        for pid in _children():
            start = started_at(pid)
            if start is not None and (name := _name(pid)) in _VITAL:
                self._started[name, pid] = start

    def what_died(self) -> str:
        """Return the name of a vital process that died; empty if all are running."""
        for (name, pid), start in self._started.items():
            if started_at(pid) != start:
                return f"{name} (process {pid})"
        return ""


def end_vital_processes() -> None:
    """Kill the vital processes of a cluster that failed to start, and so Ray's other processes."""
    for pid in _children():
        if _name(pid) in _VITAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    try:
        lists = [path.read_text(encoding="ascii") for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        return []
    return [int(pid) for text in lists for pid in text.split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def own_node() -> str:
    """Return Ray's id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({LOOPBACK, "localhost", "::1"})
_JOIN_LOOK_SECONDS = 0.05
_UNUSED_STARTS = ("start_api_server", "start_monitor", "start_log_monitor")
"""Ray's methods that start dashboard, autoscaler monitor and log copier."""


def init(address: str | None, **options: Any) -> None:
    """Call `ray.init` silently, without its signal handlers. Address None starts a cluster here."""
    import ray

    if address is None:
        options["_node_ip_address"] = LOOPBACK
    on_loopback = address is None or address.removeprefix("ray://").rpartition(":")[0].strip("[]") in _LOOPBACK_NAMES

    def start() -> None:
        from ray._private import ray_constants
        from ray._private.node import Node

        with contextlib.ExitStack() as replaced:
            if address is None:  # without processes that the pool does not need: `ray.init` would wait for them
                unused = [name for name in _UNUSED_STARTS if hasattr(Node, name)]
                replaced.enter_context(_replaced(Node, dict.fromkeys(unused, lambda _node, **_options: None)))
            if on_loopback:  # otherwise Ray moves to the host's address, and accepts connections from any machine
                replaced.enter_context(_replaced(ray_constants, {"ENABLE_RAY_CLUSTER": False}))
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)

    # `ray.init` warns that it cannot set the handler of SIGTERM, which is intended here.
    said_by = logging.getLogger("ray._private.worker")
    said_by.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())
    _without_its_signals(start)


@contextlib.contextmanager
def _replaced(owner: Any, attributes: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _without_its_signals(start: Callable[[], None]) -> None:
    """Call `start` in a thread, so that Ray keeps our signal handlers and survives a closed terminal."""
    # In the main thread, `ray.init` and its C++ part would replace the handler of SIGTERM and end the process. SIGHUP
    # is blocked in the thread and its child processes: ranks must end their epochs when the terminal is closed.
    if threading.current_thread() is not threading.main_thread():
        start()
        return
    raised: list[BaseException] = []
    done, forever = threading.Event(), threading.Event()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            start()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            raised.append(error)
        done.set()
        if not raised:
            forever.wait()  # Ray asks Linux to kill its processes when the thread that started them ends

    handler, interrupted = signal.getsignal(signal.SIGTERM), False
    threading.Thread(target=run, name="ray-init", daemon=True).start()
    while not done.is_set():
        try:
            done.wait(_JOIN_LOOK_SECONDS)
            signal.signal(signal.SIGTERM, handler)
        except KeyboardInterrupt:  # raised later: processes of a half-started cluster could not be ended
            interrupted = True
    signal.signal(signal.SIGTERM, handler)
    if raised:
        raise raised[0]
    if interrupted:
        raise KeyboardInterrupt


log = logging.getLogger(__name__)

CONNECT_DEADLINE_SECONDS = 10.0
STARTS = 3  # largest number of attempts to start a local cluster
_TOO_SLOW = "timed out during startup"
OBJECT_STORE_BYTES = 128 * 1024**2
SETTINGS: Mapping[str, str] = {
    # No usage statistics: they are private to the study.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Otherwise any thread that calls Ray would start a cluster.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # At Ray's default niceness of 15, one busy process leaves a rank 3 % of its core.
    "RAY_worker_niceness": "0",
}
"""Environment variables that Ray reads at import."""
_LOOK_SECONDS = 0.5


def join_or_start(
    address: str | None,
    *,
    slots: int,
    device: Literal["cpu", "cuda"],
    cpus_per_rank: int,
    temp_folder: str | None,
    must_fit: bool = True,
) -> bool:
    """Join a cluster, or start one if address is None. Returns whether it was started; raises PoolError."""
    ray = import_ray()
    starts = address is None and not ray.is_initialized()
    options: dict[str, Any] = {
        "num_cpus": slots * cpus_per_rank,
        "num_gpus": slots if device == "cuda" else 0,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": temp_folder,
    }
    connect(address, **(options if starts else {}))
    if must_fit:
        _check_room(slots, device, cpus_per_rank)
    return starts


def connect(address: str | None, **options: Any) -> None:
    """Join a cluster, or start a local cluster. Raises PoolError with the reason in one line."""
    ray = import_ray()
    if ray.is_initialized():
        return
    # Hide Ray's message that token authentication is enabled, but not its warning that it is off.
    said_by = logging.getLogger("ray._private.authentication.authentication_token_setup")
    said_by.addFilter(lambda record: not record.getMessage().startswith("Token authentication is enabled"))
    if address == "auto":  # resolved as in Ray, since RAY_ADDRESS may be on the loopback interface, or not answer
        address = os.environ.get("RAY_ADDRESS") or address
    if address is not None:
        check_reachable(address)
    try:
        _init_patiently(address, options)
    except Exception as error:  # Ray also raises plain Exception, for instance when a node is slow to start
        where = f"resources.ray_address: cannot use {address}" if address else "Ray: cannot start a local cluster"
        raise PoolError(f"{where}: {' '.join(str(error).split())[:300]}") from error
    hide_token()


def hide_token() -> None:
    """Make Ray's token readable for this user only, since it allows running code in the cluster."""
    with contextlib.suppress(OSError, RuntimeError):  # the token may be elsewhere
        (Path("~/.ray").expanduser() / "auth_token").chmod(0o600)


def _init_patiently(address: str | None, options: Mapping[str, Any]) -> None:
    """Call `init`, and retry if a busy machine did not start Ray within Ray's 30 s."""
    for left in reversed(range(STARTS)):
        try:
            init(address, **options)
        except Exception as error:
            if address is not None or not left or _TOO_SLOW not in str(error):
                raise
            log.warning("this machine was too busy to start Ray's node in time; trying again")
            end_vital_processes()
        else:
            return


def wait_for_nodes(address: str, nodes: int, seconds: float) -> None:
    """Connect to a starting cluster and wait for `nodes` nodes. Raises PoolError after `seconds`."""
    deadline, found, problem = time.monotonic() + seconds, 0, ""
    while time.monotonic() < deadline:
        try:
            connect(address)
            found = sum(node["Alive"] for node in import_ray().nodes())
        except PoolError as error:  # the cluster's head has not started yet
            problem = f" ({error})"
        if found >= nodes:
            return
        time.sleep(_LOOK_SECONDS)
    raise PoolError(f"Ray: {nodes} nodes are needed at {address}, but {found} joined within {seconds:g} s{problem}")


def import_ray() -> Any:
    """Set `SETTINGS`, then import Ray."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def check_reachable(address: str) -> None:
    """Raise PoolError if nothing answers at the address; Ray would try for minutes, then kill this process."""
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if address in {"auto", "local"}:
        return
    try:
        if not sign or not port.isdigit():
            raise ValueError("write HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_DEADLINE_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PoolError(f"resources.ray_address: {address!r} does not answer ({error})") from None


def _check_room(slots: int, device: Literal["cpu", "cuda"], cpus_per_rank: int) -> None:
    import ray

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    kind, each = ("GPU", 1.0) if device == "cuda" else ("CPU", float(cpus_per_rank))
    there = slots_of_nodes(ray.nodes(), 0 if device == "cuda" else cpus_per_rank)  # type: ignore[no-untyped-call]
    if there < slots:
        raise PoolError(
            f"Ray: {slots} slots x {each:g} {kind} = {slots * each:g} {kind} needed, but the cluster has "
            f"{resources.get(kind, 0):g}, enough for {there} slots, each on one node. "
            "Lower resources.slots or add nodes"
        )


def cluster_room(address: str, cpus_per_rank: int) -> tuple[int, tuple[str, ...]]:
    """Return a cluster's number of CPU slots and its GPUs' names. Raises PoolError if unreachable."""
    import ray

    connect(address)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    names = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    gpus = int(resources.get("GPU", 0))
    cpu_slots = slots_of_nodes(ray.nodes(), cpus_per_rank)  # type: ignore[no-untyped-call]
    return cpu_slots, ((names or ["GPU"])[0],) * gpus
