"""A small SLURM of this machine: munge, the controller and two node daemons, each a process of this one.

Debian has it in `slurm-wlm` and `munge`. Nothing is installed as a service, and nothing of an installed cluster is
touched: keys, sockets, ports and states lie in a folder of their own.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid

import pytest

from tests.support.autoscaling import own_address

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("one", "two")
START_SECONDS = 60.0
END_SECONDS = 30.0
CONFIG = """\
ClusterName=small
SlurmctldHost={host}({address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=15
NodeName=one NodeHostname={host} NodeAddr={address} Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr={address} Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Commands of the cluster that runs."""

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """Run a command of SLURM's and return what it prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job, by its names for it."""
        words = self.ask("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def slurm() -> Iterator[Slurm]:
    """A cluster of two nodes with a core each, which ends with the block; leaves the test out where SLURM is not.

    `.ci/run` does not install it, so that is no failure there either.
    """
    os.environ["PATH"] += ":/usr/sbin"
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"SLURM is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # paths of sockets have to be short
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _start(folder, processes)
        cluster = Slurm(folder)
        _wait_until_idle(cluster, processes)
        yield cluster
        _cancel_all(cluster, processes)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            _ended(process)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    _write_config(folder)
    log = (folder / "programs.log").open("wb")
    with log:

        def start(*command: object) -> None:
            processes.append(subprocess.Popen([str(one) for one in command], stdout=log, stderr=log))

        names = {"socket": "munge", "key-file": "key", "pid-file": "munge.pid", "seed-file": "seed", "log-file": "log"}
        start("munged", "--foreground", "--force", *(f"--{name}={folder / file}" for name, file in names.items()))
        _wait((folder / "munge").exists, processes, "munged has no socket")
        start("slurmctld", "-D", "-f", folder / "slurm.conf")
        for node in NODES:
            start("slurmd", "-D", "-N", node, "-f", folder / "slurm.conf")


def _write_config(folder: Path) -> None:
    key = folder / "key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    for name in ("state", *NODES):
        (folder / name).mkdir()
    free = [socket.create_server(("", 0)) for _ in range(3)]
    values = {
        "folder": folder, "host": socket.gethostname().partition(".")[0], "address": own_address(),
        "user": getpwuid(os.geteuid()).pw_name, "ports": [one.getsockname()[1] for one in free],
    }  # fmt: skip
    for one in free:
        one.close()
    (folder / "slurm.conf").write_text(CONFIG.format(**values))


def _wait_until_idle(cluster: Slurm, processes: list[subprocess.Popen[bytes]]) -> None:
    def are_idle() -> bool:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return asked.stdout.split() == ["idle", "idle"]

    _wait(are_idle, processes, "its nodes are not idle")


def _cancel_all(cluster: Slurm, processes: list[subprocess.Popen[bytes]]) -> None:
    """End what a test that failed has left: the daemons leave the processes of jobs behind when they end."""
    cluster.ask("scancel", "--state=PENDING")
    cluster.ask("scancel", "--state=RUNNING")
    _wait(lambda: not cluster.ask("squeue", "--noheader"), processes, "jobs do not end")


def _wait(holds: Callable[[], bool], processes: list[subprocess.Popen[bytes]], otherwise: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        assert all(process.poll() is None for process in processes), "a daemon of SLURM has ended"
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
