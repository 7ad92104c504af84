"""Programs in forks of a process with imported modules: as in a new interpreter, and alone."""

import sys
import textwrap
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.command_trials import COUNTS, run, script, spec_of
from tests.support.forking import forking_context
from tests.support.waiting import wait_until
from trainers.commands import forks
from trainers.commands.forks import Fork
from trainers.commands.program import Program
from trainers.protocol import TaskError
from trainers.ranks.printed_output import RankLog, log_folder, logs_in

pytestmark = pytest.mark.medium
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "MINE": "1"}


def ended(folder, argv, modules=(), **environment):
    """Run a program to its end; returns its status and output."""
    (folder / "log").unlink(missing_ok=True)
    given = ENVIRONMENT | environment
    changing = frozenset({"RANK", "MINE", "OMP_NUM_THREADS"})
    is_over, statuses = threading.Event(), []
    Program(
        argv, given, str(folder), log=RankLog(folder / "log", 2**20), on_line=None, kill_seconds=1.0,
        on_exit=lambda status: (statuses.append(status), is_over.set()),
        fork=Fork(tuple(modules), argv, given, str(folder), changing) if modules else None,
    )  # fmt: skip
    assert is_over.wait(120)
    return statuses[0], (folder / "log").read_text()


def texts_in(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file() and path.name != "log"}


LIKE_A_NEW_INTERPRETER = {
    "its state": """
        import os, resource, signal, sys
        print(sys.argv, sys.orig_argv, __file__, __name__, __spec__ and __spec__.name, sorted(globals()), sys.path)
        print({name: value for name, value in os.environ.items() if name != "AUTOML_PROGRAM"}, os.getcwd())
        print(sorted(os.listdir("/proc/self/fd")), os.getpgrp() == os.getsid(0) == os.getpid(), sys.stdin.read())
        print([str(signal.getsignal(one)) for one in signal.Signals], signal.pthread_sigmask(0, []), sys.flags)
        print([resource.getrlimit(one) for one in range(10)], os.umask(0), sys.stdout.seekable(), sys.stdout.encoding)
    """,
    "an error": "def fails():\n    1 / 0\nfails()",
    "no Python": "x = = 1",
    "a text": "import sys; sys.exit('no way')",
    "a number": "import sys; sys.exit(3)",
    "an own hook": "import sys, traceback\nsys.excepthook = lambda *of: print(len(traceback.extract_tb(of[2])))\n1 / 0",
    "Ctrl-C": "import os, time; os.kill(os.getpid(), 2); time.sleep(60)",
    "SIGTERM": "import os, time; os.kill(os.getpid(), 15); time.sleep(60)",
    "a thread that is waited for, and what is called then": """
        import atexit, sys, threading, time
        atexit.register(print, "at the end")
        me = sys.modules["__main__"]
        threading.Thread(target=lambda: (time.sleep(0.2), print(sys.modules["__main__"] is me))).start()
        sys.stdout.write("not flushed ")
    """,
    "files that are left open": """
        import json, sys
        class Ends:
            def __del__(self): print("freed", file=sys.stderr)
        ends, own = Ends(), open("own.txt", "w")
        json.mine, binary = open("shared.txt", "w"), open("binary", "wb")
        own.write("a"), json.mine.write("b"), binary.write(b"c")
    """,
    "an output that nobody can write": "import os, sys; print('x'); os.close(1)",
    "processes": """
        import multiprocessing, pickle
        class Mine: pass
        def double(value): return 2 * value
        if __name__ == "__main__":
            print(pickle.dumps(Mine), multiprocessing.get_context("spawn").Pool(1).map(double, [1, 2]))
    """,
}


@pytest.mark.parametrize("case", LIKE_A_NEW_INTERPRETER)
def test_a_fork_runs_and_ends_like_a_new_interpreter(tmp_path, case):
    script(tmp_path, LIKE_A_NEW_INTERPRETER[case])
    ways = [["python", "train.py", "a b"]]
    if case in {"its state", "an error"}:
        ways += [["python", "-u", "./train.py"], ["python", "-m", "train", "x"]]
        ways.append(["python", "-c", (tmp_path / "train.py").read_text().replace("__file__", "0"), "y"])
    for argv in ways:
        (status, output), written = ended(tmp_path, argv, ["json", "random"]), texts_in(tmp_path)
        cold_status, cold_output = ended(tmp_path, argv)
        assert (status, *output.splitlines()) == (cold_status, *cold_output.splitlines())
        assert written == texts_in(tmp_path)


def test_nothing_of_one_fork_is_in_the_next_and_their_random_numbers_differ(tmp_path):
    script(
        tmp_path,
        """
        import json, logging, os, random, sys
        import numpy
        is_new = "antigravity_" not in sys.modules and not hasattr(json, "mine") and not logging.getLogger().handlers
        print(is_new, len(sys.argv), os.environ.get("LEFT"), os.getcwd(), random.random(), numpy.random.rand())
        sys.modules["antigravity_"] = json.mine = json
        sys.argv.append("x")
        os.environ["LEFT"] = "x"
        os.chdir("/")
        logging.basicConfig()
        random.seed(0), numpy.random.seed(0)
    """,
    )
    run_it = partial(ended, tmp_path, ["python", "train.py"], ["json", "logging", "numpy"])
    (_, first), (_, second) = run_it(), run_it()
    *states, one, other = zip(first.split(), second.split(), strict=True)
    assert states == [(same, same) for same in ("True", "1", "None", str(tmp_path))]
    assert one[0] != one[1]
    assert other[0] != other[1]


def test_modules_see_at_their_import_what_a_trial_gives_them(tmp_path):
    """MINE changes as well, but no module asks for it; a C library may ask for the number of threads."""
    (tmp_path / "asks.py").write_text("import os\nsees = os.environ.get('RANK'), os.getpid()\n")
    (tmp_path / "train.py").write_text("import asks; print(*asks.sees)")
    run_it = partial(ended, tmp_path, ["python", "train.py"], ["asks"])
    trials = [{}, {"MINE": "2"}, {"RANK": "1"}, {"RANK": "1"}, {"RANK": "1", "OMP_NUM_THREADS": "2"}, {}]
    ranks, processes = zip(*(run_it(**one)[1].split() for one in trials), strict=True)
    assert ranks == ("None", "None", "1", "1", "1", "None")
    assert [processes.index(one) for one in processes] == [0, 0, 2, 2, 4, 0]


def test_modules_are_imported_in_the_commands_own_folder(tmp_path):
    """An empty part of PYTHONPATH is that folder, too."""
    (tmp_path / "where.py").write_text("import os\nplace = os.getcwd()\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import where; print(where.place)")
    for modules in ([], ["where"]):
        assert ended(tmp_path, ["python", "src/train.py"], modules, PYTHONPATH=":/nowhere") == (0, f"{tmp_path}\n")


def test_a_program_gets_more_variables_than_a_pipe_holds(tmp_path):
    script(tmp_path, "import os; print(len(os.environ['MINE']))")
    assert ended(tmp_path, ["python", "train.py"], ["json"], MINE="x" * 100_000) == (0, "100000\n")


@pytest.mark.parametrize(
    ("preload", "command", "why"),
    [
        (["starts_a_thread"], ["python", "train.py"], r"importing starts_a_thread starts threads (python)"),
        (["starts_a_process"], ["python", "train.py"], "importing starts_a_process starts processes"),
        (["no_such"], ["python", "train.py"], "no_such cannot be imported: ModuleNotFoundError: No module named"),
        (["dies"], ["python", "train.py"], "the process that imports ended (last words)"),
        (["json"], ["python", "-X", "dev", "train.py"], "python is started with -X"),
        (["json"], ["env", "python", "train.py"], "the program env is not python"),
    ],
)
def test_a_command_that_cannot_be_forked_starts_without_it_and_says_why(tmp_path, preload, command, why):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    (tmp_path / "starts_a_process.py").write_text("import subprocess; mine = subprocess.Popen(['sleep', '30'])")
    (tmp_path / "dies.py").write_text("import os; print('last words', flush=True); os._exit(3)")
    script(tmp_path, COUNTS)
    for attempt in 1, 2:  # the second one does not import again
        spec = spec_of(tmp_path, {"preload": preload, "command": command}, attempt=attempt)
        assert run(spec).epochs == [1, 2, 3, 4]
        *_, log = logs_in(log_folder(tmp_path, spec.study, spec.trial).resolve()).values()
        assert f"[automl] preload: {why}" in log.read_text()


def test_an_unexpected_error_of_a_fork_starts_the_command_without_it(tmp_path):
    script(tmp_path, "print('runs')")
    _, printed = ended(tmp_path, ["python", "train.py"], ["no\0name"])
    assert "preload: ValueError: embedded null byte" in printed
    assert printed.endswith("runs\n")


HANGS = """
    import os, pathlib, time
    pathlib.Path(__file__).with_name("new").write_text(str(os.getpid()))
    pathlib.Path(__file__).with_name("new").rename(pathlib.Path(__file__).with_name("pid"))
    time.sleep(600)
"""


def test_an_import_that_hangs_ends_with_the_trial_or_its_rank(tmp_path):
    script(tmp_path, HANGS, "hangs.py")
    script(tmp_path, COUNTS)
    options, pid = {"preload": ["hangs"], "first_report_seconds": 1}, tmp_path / "pid"
    with pytest.raises(TaskError, match="not reported an epoch for 1 s"):
        run(spec_of(tmp_path, options))
    assert not psutil.pid_exists(int(pid.read_text()))
    pid.unlink()
    rank = forking_context().Process(target=run, args=(spec_of(tmp_path, options | {"first_report_seconds": 600}),))
    rank.start()
    wait_until(pid.exists)
    rank.kill()
    rank.join()
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())))


@pytest.mark.large
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_forks_with_torch_use_threads_and_signals_and_leave_the_parent_as_it_is(tmp_path, count):
    text = """
        import os, signal, threading
        import torch
        first = torch.rand(1).item()
        torch.set_num_threads(2)
        got = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: got.set())
        worker = threading.Thread(target=lambda: (torch.rand(300, 300) @ torch.rand(300, 300)).sum().backward)
        worker.start()
        layer = torch.nn.Linear(200, 200)
        layer(torch.rand(500, 200)).sum().backward()
        worker.join()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert got.wait(10) and torch.get_num_threads() == 2
        print(first)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    seen, memory = set(), []
    for number in range(count):
        status, printed = ended(tmp_path, ["python", "train.py"], ["torch"], MINE=str(number))
        assert status == 0, printed
        seen.add(printed)
        (process,) = (psutil.Process(one.process.pid) for one in forks._kept if one.key[1] == ("torch",))
        memory.append(process.memory_full_info().uss)
        assert len(process.threads()) == 1
        assert not process.children()
    assert len(seen) == count, "random numbers of two forks were the same"
    assert max(memory[5:]) - memory[5] < 2**20
