"""Starting a cluster on a machine that is busy: in a process of its own, since it ends what Ray has half started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import os, pathlib, subprocess, sys, time
from studies.gangs import ray_cluster

failures, message, address = int(sys.argv[1]), sys.argv[2], sys.argv[3] or None
os.symlink("/bin/sleep", "raylet")
calls, left, other = 0, [], subprocess.Popen(["sleep", "600"])

def init(address, **options):
    global calls
    calls += 1
    if calls <= failures:
        left.append(subprocess.Popen(["./raylet", "600"]))
        # The kernel sets a process's name a little after Popen has returned.
        while pathlib.Path(f"/proc/{left[-1].pid}/comm").read_text() != "raylet\\n":
            time.sleep(0.001)
        raise RuntimeError(message)

def has_ended(one):
    try:
        return one.wait(5) != 0
    except subprocess.TimeoutExpired:
        return False

ray_cluster.init = init
ray_cluster.check_reachable = lambda address: None
try:
    ray_cluster.connect(address)
    print("started")
except ray_cluster.PoolError as error:
    print(error)
print(calls, "starts;", sum(map(has_ended, left[: calls - 1])), "ended")
print("other child lives:", other.poll() is None)
for one in (*left, other):
    one.kill()
    one.wait()
"""
SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("failures", "message", "address", "says"),
    [
        (2, SLOW, "", ["started", "3 starts; 2 ended"]),
        (9, SLOW, "", ["Ray: cannot start a local cluster: The current node timed out", "3 starts; 2 ended"]),
        (9, "no space left", "", ["Ray: cannot start a local cluster: no space left", "1 starts; 0 ended"]),
        (9, SLOW, "10.0.0.1:6379", ["resources.ray_address: cannot use 10.0.0.1:6379", "1 starts; 0 ended"]),
    ],
)
def test_only_a_start_that_was_too_slow_is_tried_again(
    tmp_path: Path, failures: int, message: str, address: str, says: list[str]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(failures), message, address]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    for words in (*says, "other child lives: True"):
        assert words in done.stdout, done


@pytest.mark.medium
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("connect('auto')", "resources.ray_address: '127.0.0.1:1' does not answer"),
        ("wait_for_nodes('127.0.0.1:1', 2, 1.0)", "2 nodes are needed at 127.0.0.1:1, but 0 joined within 1 s"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(call: str, says: str) -> None:
    """Ray itself would try for minutes, by an address that it makes of the loopback interface's."""
    program = f"""
from studies.gangs import ray_cluster
try:
    ray_cluster.{call}
except ray_cluster.PoolError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert says in done.stdout
