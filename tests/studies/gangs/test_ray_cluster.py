"""Starting a cluster on a machine that is busy: in a process of its own, since it ends what Ray has half started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import json, os, pathlib, subprocess, sys, time
from studies.gangs import ray_cluster

os.symlink("/bin/sleep", "raylet")
other = subprocess.Popen(["sleep", "600"])
check_reachable = ray_cluster.check_reachable

def has_ended(one):
    try:
        return one.wait(5) != 0
    except subprocess.TimeoutExpired:
        return False

def start(failures, message, address):
    calls, left = 0, []

    def init(address, **options):
        nonlocal calls
        calls += 1
        if calls <= failures:
            left.append(subprocess.Popen(["./raylet", "600"]))
            # The kernel sets a process's name a little after Popen has returned.
            while pathlib.Path(f"/proc/{left[-1].pid}/comm").read_text() != "raylet\\n":
                time.sleep(0.001)
            raise RuntimeError(message)

    ray_cluster.init = init
    ray_cluster.check_reachable = lambda address: None
    try:
        ray_cluster.connect(address)
        said = "started"
    except ray_cluster.PoolError as error:
        said = str(error)
    ended = sum(map(has_ended, left[: calls - 1]))
    for one in left:
        one.kill()
        one.wait()
    return said, f"{calls} starts; {ended} ended; other child lives: {other.poll() is None}"

told = [start(*case) for case in json.loads(sys.argv[1])]
ray_cluster.check_reachable = check_reachable
for call in (lambda: ray_cluster.connect("auto"), lambda: ray_cluster.wait_for_nodes("127.0.0.1:1", 2, 1.0)):
    try:
        call()
    except ray_cluster.PoolError as error:
        told.append((str(error), ""))
other.kill()
other.wait()
print(json.dumps(told))
"""
SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"
CASES = [
    (2, SLOW, None, "started", "3 starts; 2 ended"),
    (9, SLOW, None, "Ray: cannot start a local cluster: The current node timed out", "3 starts; 2 ended"),
    (9, "no space left", None, "Ray: cannot start a local cluster: no space left", "1 starts; 0 ended"),
    (9, SLOW, "10.0.0.1:6379", "resources.ray_address: cannot use 10.0.0.1:6379", "1 starts; 0 ended"),
]
NOT_THERE = [
    "resources.ray_address: '127.0.0.1:1' does not answer",
    "2 nodes are needed at 127.0.0.1:1, but 0 joined within 1 s",
]


@pytest.mark.medium
def test_only_a_start_that_was_too_slow_is_tried_again_and_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Ray itself would try for minutes, by an address that it makes of the loopback interface's."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([case[:3] for case in CASES])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == len(CASES) + len(NOT_THERE)
    for (said, counts), (*_, words, starts) in zip(told, CASES, strict=False):
        assert words in said
        assert counts == f"{starts}; other child lives: True"
    for (said, _), words in zip(told[len(CASES) :], NOT_THERE, strict=True):
        assert words in said
