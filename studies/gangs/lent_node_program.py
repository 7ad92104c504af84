"""The program of a lent node: one node of somebody else's Ray cluster, which lives no longer than its lender.

    python -m studies.gangs.lent_node_program '{"cluster": "10.0.0.5:41234", "address": "10.0.0.7", ...}'

It does what `ray start --block` does, which cannot be used here: that turns 127.0.0.1 into the host's address, takes
fixed ports, and survives who started it. The token comes from the environment. At SIGTERM Ray drains the node: no new
work is placed on it, and it ends as soon as its gangs have left, or after `RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S`
seconds. When the lender dies, the program kills all processes of the node, itself included: ranks would notice that
Ray's processes are gone after a second only, and write checkpoints of epochs that are trained again elsewhere by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, import_ray
from studies.storage.processes import of_session

_PR_SET_PDEATHSIG = 1
_LENDER_DIED = signal.SIGUSR1
_LOOK_SECONDS = 0.5


def main() -> None:
    """Serve a node until it is told to end, or one of its processes dies."""
    order = json.loads(sys.argv[1])
    _end_with(order["lender"])
    node = _joined(order)
    while not (dead := node.dead_processes()):
        time.sleep(_LOOK_SECONDS)
    node.kill_all_processes(check_alive=False, allow_graceful=False)
    sys.exit(f"{dead[0][0]} ended with code {dead[0][1].returncode}")


def _end_with(lender: int) -> None:
    """Let the kernel tell when the lender dies. Ray has it kill the node's processes when this one dies."""
    signal.signal(_LENDER_DIED, _end_all)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _LENDER_DIED, 0, 0, 0)
    if os.getppid() != lender:  # it has died before
        sys.exit("its lender is gone")


def _end_all(_number: int, _frame: FrameType | None) -> None:
    """Kill the whole session, whose leader this process is."""
    own = os.getpid()
    for pid in (*(one for one in of_session(own) if one != own), own):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _joined(order: dict[str, Any]) -> Any:
    """The node, once the cluster knows it."""
    import_ray()
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params: Any = RayParams(
        gcs_address=order["cluster"],
        node_ip_address=order["address"],
        num_cpus=order["cpus"],
        num_gpus=order["gpus"],
        object_store_memory=OBJECT_STORE_BYTES,
        node_manager_port=0,
        dashboard_agent_listen_port=None,
    )
    params.update(include_log_monitor=False)
    return Node(params, head=False, shutdown_at_exit=True, spawn_reaper=True)


if __name__ == "__main__":
    main()
