"""A Ray cluster that grows and shrinks by itself, of processes of this machine, by Ray's provider of made-up nodes.

Ray's own `AutoscalingCluster` ends every cluster of the machine when it starts and ends (`ray stop`), and reads a
file that Ray's package does not have. This one starts its head itself, and ends what it has started.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from studies.gangs.ray_cluster import OBJECT_STORE_BYTES
from tests.support.served import free_port

MOST_NODES = 3
IDLE_SECONDS = 6.0
"""Time without anything on a node after which the autoscaler takes it away."""
UP_SECONDS = 60.0
_HEAD_ID = "f" * 51 + "00000"


class AutoscalingRay:
    """A head without CPUs, and up to three nodes of one CPU that come when processes wait for a CPU."""

    def __init__(self, *, is_v2: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="grows-", dir="/tmp"))  # Ray's sockets need short names
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        host, port = own_address(), free_port()
        self.address = f"{host}:{port}"
        config = self._folder / "autoscaler.json"
        config.write_text(json.dumps(_config(self.address, is_v2=is_v2)))
        variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        if is_v2:
            variables |= {
                "RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
            }  # fmt: skip
        command = [
            str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--autoscaling-config={config}",
            f"--port={port}", "--num-cpus=0", "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={self._folder}", "--include-dashboard=false", "--disable-usage-stats",
        ]  # fmt: skip
        if not Path(command[0]).exists():  # an environment that borrows another one's packages
            command[:1] = [sys.executable, "-m", "ray.scripts.scripts"]
        with (self._folder / "said").open("w") as said:
            self._head = subprocess.Popen(
                command, env={**os.environ, **self.environment, **variables}, stdout=said, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_until_up(host, port)
        except BaseException:
            self.end()
            raise

    def _wait_until_up(self, host: str, port: int) -> None:
        """Wait until the head has its raylet: a process that joins before finds no node on this machine."""
        deadline = time.monotonic() + UP_SECONDS
        while True:
            with contextlib.suppress(OSError), contextlib.closing(socket.create_connection((host, port), 1.0)):
                if self._raylets():
                    return
            assert self._head.poll() is None, (self._folder / "said").read_text()[-3000:]
            assert time.monotonic() < deadline, (self._folder / "said").read_text()[-3000:]
            time.sleep(0.2)

    @property
    def nodes(self) -> int:
        """Number of nodes that live, without the head."""
        return max(len(self._raylets()) - 1, 0)

    def _raylets(self) -> list[psutil.Process]:
        return [one for one in self._processes() if one.name() == "raylet"]

    def _processes(self) -> list[psutil.Process]:
        """Living processes that were started with a path in the cluster's own folder."""
        mine = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and str(self._folder) in " ".join(process.cmdline()):
                    mine.append(process)
        return mine

    def end(self) -> None:
        """End the head, the nodes, and what they have started."""
        mine: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            mine += [psutil.Process(self._head.pid)]
        for process in self._processes():
            mine.append(process)
            with contextlib.suppress(psutil.Error):
                mine += process.children(recursive=True)
        for process in mine:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._head.wait()
        psutil.wait_procs(mine, timeout=10.0)
        shutil.rmtree(self._folder, ignore_errors=True)


def _config(address: str, *, is_v2: bool) -> dict[str, Any]:
    empty_lists = (
        "cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands", "rsync_exclude",
        "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands", "rsync_filter",
    )  # fmt: skip
    return {
        "cluster_name": "made-up", "max_workers": MOST_NODES, "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_SECONDS / 60,
        "provider": {
            # By the name `fake_multinode` Ray would look for the file that its package does not have.
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address, "head_node_id": _HEAD_ID, "launch_multiple": is_v2,
            "use_node_id_as_ip": True, "disable_node_updaters": True, "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": 1, "object_store_memory": OBJECT_STORE_BYTES}, "node_config": {},
                "min_workers": 0, "max_workers": MOST_NODES,
            },
        },
        "head_node_type": "ray.head.default", "file_mounts_sync_continuously": False,
        **{name: {} for name in ("head_node", "worker_nodes", "docker", "auth", "file_mounts")},
        **{name: [] for name in empty_lists},
    }  # fmt: skip


def own_address() -> str:
    """The address by which Ray knows this host."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())
