"""The process that tries out a task ends with whoever asked it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import is_gone, wait_until

SLOW = """
import os, time
from pathlib import Path

class Slow:
    def __init__(self):
        Path(os.environ["SLOW_PID"]).write_text(str(os.getpid()))
        time.sleep(600)
"""
ASKER = "import subprocess, sys; subprocess.run(sys.argv[2:], input=sys.argv[1], text=True, process_group=0)"


@pytest.mark.medium
def test_it_ends_when_a_killed_process_had_asked_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    file = tmp_path / "pid"
    question = json.dumps({"task": "slow:Slow", "python_path": [str(tmp_path)]})
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER, question, sys.executable, "-P", "-m", "trainers.local.try_out_task"],
        env=os.environ | {"SLOW_PID": str(file)},
    )
    wait_until(lambda: file.exists() and file.read_text())
    asked = int(file.read_text())
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    wait_until(lambda: is_gone(asked))
