"""Commands in real processes: metrics, checkpoints, ends, and what is refused."""

import contextlib
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from studies.control.machine.study_setup import OwnLogging
from tests.support.command_trials import COUNTS, OPTIONS, Grants, run, script, spec_of
from tests.support.forking import forking_context
from tests.support.waiting import wait_until
from trainers.checkpoints.locations import counting
from trainers.commands.kept_folder import files_in, put_files
from trainers.commands.rank_variables import own_place
from trainers.commands.start import working_folder
from trainers.failures import CheckpointError, UnreadablePartError
from trainers.protocol import LostError, OutOfMemoryError, TaskError, TrainingError
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress, StoreServer
from trainers.ranks.printed_output import log_folder, logs_in
from trainers.ranks.process_group import Group

pytestmark = pytest.mark.medium
ASLEEP = f"trial-of-a-test-that-sleeps-{os.getpid()}"
"""Argument by which processes that must not be left over are found."""


@pytest.fixture
def write_script(tmp_path):
    return partial(script, tmp_path)


@pytest.fixture(params=["cold", "warm"])
def cold_and_warm(request, monkeypatch):
    """Run the test with commands in new interpreters, and with forks."""
    if request.param == "warm":
        monkeypatch.setitem(OPTIONS, "preload", ["json", "random"])


def log_of(spec) -> str:
    return next(iter(logs_in(log_folder(spec.python_path[0], spec.study, spec.trial).resolve()).values())).read_text()


def folders() -> set[Path]:
    return {path.parent for path in Path(tempfile.gettempdir()).glob(f"automl-trial-*-{os.getpid()}-*/channel")}


def left_over() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if ASLEEP in (one.info["cmdline"] or [])]


@pytest.mark.usefixtures("cold_and_warm")
def test_a_command_reports_each_epoch_and_goes_on_from_its_folder(tmp_path):
    script(tmp_path, COUNTS)
    spec = spec_of(tmp_path)
    grants = run(spec)
    assert grants.epochs == [1, 2, 3, 4]
    assert [one.metrics["val_error"] for one in grants.measurements] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert [one.checkpoint is not None for one in grants.measurements] == [False, True, False, True]
    assert not any(one.ended or one.complete for one in grants.measurements)
    assert grants.facts.code_files.keys() == {"train.py"}
    first = run(spec, Grants(until=2))
    assert first.epochs == [1, 2]
    resumed = replace(spec, attempt=2, resume_from=first.measurements[-1].checkpoint)
    second = run(resumed)
    assert second.epochs == [3, 4]
    assert second.facts.start_epoch == 2
    with pytest.raises(CheckpointError, match="has params"):
        run(replace(resumed, params={"learning_rate": 0.2}))


@pytest.mark.parametrize(
    ("argument", "used"), [("{learning_rate}", 0.1), ("{scaled_learning_rate}", 0.4), ("--plain", 0.4)]
)
def test_the_rate_of_a_command_is_the_one_that_it_was_given(tmp_path, argument, used):
    """A program without the rate in its arguments may read AUTOML_LEARNING_RATE, which is scaled."""
    script(tmp_path, COUNTS)
    training = {"epochs": 4, "batch_per_rank": 256, "reference_batch": 64, "lr_scaling": "linear"}
    facts = run(spec_of(tmp_path, {"command": ["python", "train.py", argument]}, training=training)).facts
    assert (facts.scaled_learning_rate, facts.lr_scaling) == (pytest.approx(used), "none" if used == 0.1 else "linear")


def test_a_drain_ends_with_a_checkpoint(tmp_path):
    script(tmp_path, COUNTS)
    grants = run(spec_of(tmp_path, milestones=()), Grants(drains_with=3))
    assert grants.epochs == [1, 2, 3]
    last = grants.measurements[-1]
    assert last.ended
    assert Path(last.checkpoint).exists()


SAVES_EACH_FIFTH = """
    import automl, time
    folder = automl.resume()
    done = int((folder / "done").read_text()) if folder else 0
    for epoch in range(done + 1, 11):
        time.sleep(0.3)
        if (kept := automl.checkpoint(epoch)) and epoch % 5 == 1:
            (kept / "done").write_text(str(epoch))
        automl.report(epoch=epoch, val_error=0)
"""
"""A script of ten epochs whose checkpoint of epoch 8 holds what it had saved after epoch 1."""


def test_epochs_that_an_older_state_repeats_are_told_with_their_own_time_and_are_no_silence(tmp_path):
    """The trial begins again with epoch 2, though eight epochs are done; together they take longer than the limits."""
    script(tmp_path, SAVES_EACH_FIFTH)
    limits = {"report_seconds": 2.2, "first_report_seconds": 2.2}
    spec = spec_of(tmp_path, limits, training={"epochs": 10}, milestones=(1, 8))
    again = replace(spec, attempt=2, resume_from=run(spec, Grants(until=8)).measurements[-1].checkpoint)
    grants = run(again)
    assert grants.epochs == list(range(2, 11))
    assert [one.epoch for one in grants.measurements if one.metrics] == [9, 10]
    assert not any(one.checkpoint for one in grants.measurements[:-1])
    seconds = [one.wall_seconds for one in grants.measurements]
    assert max(seconds) < sum(seconds) / 2, "nine epochs that take 0.3 s each"
    drained = run(again, Grants(drains_with=1))  # a node that is taken away does not wait for all that is repeated
    assert [(one.epoch, one.ended, one.checkpoint) for one in drained.measurements] == [(2, True, None)]


def test_files_of_folders_come_back_as_they_were(tmp_path, write_script):
    write_script("""
        import automl, sys
        folder = automl.resume()
        if folder:
            assert (folder / "a" / "b.bin").read_bytes() == bytes(range(256)) * 300, "other bytes"
            assert (folder / "empty").read_bytes() == b""
        for epoch in range(3 if folder else 1, 5):
            if kept := automl.checkpoint(epoch):
                (kept / "a").mkdir(exist_ok=True)
                (kept / "a" / "b.bin").write_bytes(bytes(range(256)) * 300)
                (kept / "empty").touch()
            automl.report(epoch=epoch, val_error=0)
    """)
    spec = spec_of(tmp_path)
    first = run(spec, Grants(until=2))
    assert run(replace(spec, resume_from=first.measurements[-1].checkpoint)).epochs == [3, 4]


LINES = """
    import os, pathlib, sys, time
    kept = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"]) / "done"
    done = int(kept.read_text()) if kept.exists() else 0
    for epoch in range(done + 1, 5):
        kept.write_text(str(epoch))
        print({line}, flush=True)
        time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ("json", """'{"epoch": %d, "val_error": %f, "note": "text"}' % (epoch, 1 / epoch)"""),
        ({"pattern": r"epoch (?P<epoch>\d+): error (?P<val_error>\S+)"}, "f'epoch {epoch}: error {1 / epoch}'"),
        ({"pattern": r"error=(?P<val_error>\S+)"}, "f'error={1 / epoch}'"),
    ],
)
def test_metrics_are_read_from_what_a_command_prints(tmp_path, metrics, line):
    script(tmp_path, LINES.replace("{line}", line))
    spec = spec_of(tmp_path, {"metrics": metrics})
    first = run(spec, Grants(until=2))
    assert first.epochs == [1, 2]
    assert first.measurements[1].metrics == {"val_error": pytest.approx(0.5, abs=1e-5)}
    goes_on = "epoch" in str(metrics) or metrics == "json"  # else nobody could tell of which epoch its files are
    assert (first.measurements[1].checkpoint is not None) == goes_on
    again = run(replace(spec, attempt=2, resume_from=first.measurements[1].checkpoint))
    assert again.epochs == ([3, 4] if goes_on else [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("metrics", "bar", "line", "seconds"),
    [
        ({"pattern": r"loss: (?P<val_error>\S+)"}, r"\r1/10 loss: 0.9", r"\r10/10 loss: 0.1", 0.1),
        ({"pattern": r"loss: (?P<val_error>\S+)"}, r"\r1/10 loss: 0.9", r"\r10/10 loss: 0.1\r\r", 0.0),
        ("json", r"\r100%|####| 10/10\r", r'{{"epoch": {epoch}, "val_error": 0.1}}\r', 0.0),
        ("json", "x" * 70_000 + r"\r", r'{{"epoch": {epoch}, "val_error": 0.1}}', 0.1),
    ],
    ids=["pattern", "pattern before returns", "JSON after a bar", "JSON after a long bar"],
)
def test_the_last_state_of_a_progress_bar_is_read(tmp_path, write_script, metrics, bar, line, seconds):  # noqa: PLR0917
    """Bar and line come together, or in parts that are read one by one."""
    write_script(f"""
        import sys, time
        for epoch in range(1, 5):
            for part in "{bar}", f'{line}', "\\n":
                sys.stdout.write(part)
                if {seconds}:
                    sys.stdout.flush()
                    time.sleep({seconds})
    """)
    spec = spec_of(tmp_path, {"metrics": metrics, "environment": {"PYTHONUNBUFFERED": ""}})
    assert [one.metrics["val_error"] for one in run(spec).measurements] == [0.1] * 4
    assert log_of(spec).count("10/10" if "10/10" in bar + line else "x" * 70_000) == 4, "the log has all of it"


def test_files_of_a_later_epoch_than_a_line_are_not_kept(tmp_path, write_script):
    write_script("""
        import os, pathlib, sys, time
        kept = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"]) / "done"
        done = int(kept.read_text()) if kept.exists() else 0
        for epoch in range(done + 1, 5):
            kept.write_text(str(epoch))
            print('{"epoch": %d, "val_error": 0}' % epoch)
            if epoch != 2:
                sys.stdout.flush()  # the lines of epochs 2 and 3 come together
                time.sleep(0.3)
    """)
    spec = spec_of(tmp_path, {"metrics": "json", "environment": {"PYTHONUNBUFFERED": ""}}, milestones=(2, 3))
    first = run(spec, Grants(until=3))
    assert [one.checkpoint is not None for one in first.measurements] == [False, False, True]
    assert run(replace(spec, attempt=2, resume_from=first.measurements[-1].checkpoint)).epochs == [4]


def test_a_trial_goes_back_where_its_files_turn_out_to_be_of_a_later_epoch(tmp_path):
    text = LINES.replace("{line}", """'{"epoch": %d, "val_error": 0}' % epoch""")
    script(tmp_path, text.replace("str(epoch)", "str(epoch + 1)"))  # as one that has trained on before it is held
    spec = spec_of(tmp_path, {"metrics": "json"})
    first = run(spec, Grants(until=2))
    with pytest.raises(UnreadablePartError, match="continued with epoch 4, but its checkpoint is of epoch 2"):
        run(replace(spec, attempt=2, resume_from=first.measurements[1].checkpoint))


@pytest.mark.xdist_group("ranks")
def _keep_what_shrinks(folder):
    path = folder / "state"
    path.write_bytes(bytes(2**22))
    files = files_in(folder)
    os.truncate(path, 1)
    assert int(files["state"].sum()) == 0
    assert len(files["state"]) == 2**22
    sizes = itertools.cycle([2**25, 2**24 + 1])
    with (
        pytest.raises(TaskError, match="files in the folder of checkpoints changed while"),
        counting(lambda: os.truncate(path, next(sizes))),
    ):
        files_in(folder)


def test_a_file_that_shrinks_while_it_is_kept_ends_nobody(tmp_path):
    process = forking_context().Process(target=_keep_what_shrinks, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0, "a signal would have a negative one"


@pytest.mark.parametrize("calls_resume", [False, True])
def test_the_first_epoch_begins_with_the_program_or_where_that_says(tmp_path, write_script, calls_resume):
    resumes = "automl.resume()" if calls_resume else ""
    write_script(f"""
        import automl, time
        time.sleep(0.6)
        {resumes}
        for epoch in range(1, 5):
            time.sleep(0.3)
            automl.report(epoch=epoch, val_error=0)
    """)
    grants = run(spec_of(tmp_path))
    first, second = (one.wall_seconds for one in grants.measurements[:2])
    assert second < 0.6
    assert (first < 0.6) == calls_resume
    assert grants.begun_seconds_ago < 0.1 if calls_resume else 0.9 <= grants.begun_seconds_ago <= first + 0.05


def test_what_is_no_metric_in_a_printed_line_is_said_once(tmp_path, write_script):
    write_script("""
        print("x" * 70_000)
        print('{"epoch": 7, "val_error": 0, "long": "%s"}' % ("x" * 200_000))
        for epoch in range(1, 5):
            print('{"epoch": %d, "val_error": 0, "note": "a text"}' % epoch)
    """)
    spec = spec_of(tmp_path, {"metrics": "json"})
    assert run(spec).epochs == [1, 2, 3, 4]
    notes = [line for line in log_of(spec).splitlines() if line.startswith("[automl]")]
    assert notes == [
        "[automl] a line of more than 64 KiB was skipped: print metrics in shorter lines",
        "[automl] only numbers are metrics; ignored: note: 'a text'",
    ]


def test_a_port_that_another_process_has_taken_is_no_fault_of_the_command(tmp_path, write_script):
    write_script("""
        import os, socket, torch.distributed as dist
        other = socket.create_server(("", int(os.environ["MASTER_PORT"])))
        dist.init_process_group("gloo")
    """)
    with pytest.raises(LostError, match=r"another process took port \d+ before the command did"):
        run(spec_of(tmp_path, params={"world_size": 1}))


@pytest.mark.usefixtures("cold_and_warm")
def test_a_command_that_prints_its_metrics_is_held_while_the_search_decides(tmp_path, write_script):
    write_script("""
        import pathlib, time
        for epoch in range(1, 5):
            print('{"epoch": %d, "val_error": 0}' % epoch, flush=True)
            for _ in range(30):
                time.sleep(0.01)
                pathlib.Path("ticks").open("a").write(".")
    """)
    ticks = tmp_path / "ticks"

    class Slow(Grants):
        before, after = -1, -2

        def until(self, epoch):
            if epoch == 2:
                time.sleep(0.3)
                self.before = ticks.stat().st_size
                time.sleep(0.6)
                self.after = ticks.stat().st_size
            return super().until(epoch)

    slow = Slow()
    assert run(spec_of(tmp_path, {"metrics": "json"}), slow).epochs == [1, 2, 3, 4]
    assert slow.before == slow.after
    assert ticks.stat().st_size == 120


def test_names_in_braces_are_replaced(tmp_path, write_script):
    write_script("""
        import json, os, sys, automl
        print(sys.argv[1:], os.environ["MINE"])
        assert automl.params() == json.load(open(sys.argv[4])) == {"learning_rate": 0.25, "kind": "a b"}
        assert sys.argv[1:4] == ["--lr=0.25", "--kind", "a b"], sys.argv
        assert sys.argv[5:] == ["4", "{literal}", "1"], sys.argv
        assert float(os.environ["AUTOML_LEARNING_RATE"]) == 0.125
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
    """)
    options = {
        "command": [
            "python", "train.py", "--lr={learning_rate}", ["--kind", "{kind}"], ["--none", "{absent}"],
            "{params_file}", "{epochs}", "{{literal}}", "{world_size}",
        ],
        "environment": {"MINE": "seed {seed}"},
    }  # fmt: skip
    params = {"learning_rate": 0.25, "kind": "a b"}
    spec = spec_of(
        tmp_path, options, params=params, seed=7, training={"epochs": 4, "batch_per_rank": 32, "reference_batch": 64}
    )
    assert run(spec).epochs == [1, 2, 3, 4]
    assert "seed 7" in log_of(spec)


WRONG = {
    "exits at once": ("pass", {}, TaskError, "ended with exit status 0 without a report"),
    "prints what nobody reads": (
        """print('{"epoch": 1, "val_error": 2}')""",
        {}, TaskError, "automl.report, or task.metrics: json or .pattern",
    ),
    "prints other lines": (
        "print('epoch 1'); print('error 2')",
        {"metrics": {"pattern": r"loss (?P<val_error>\S+)"}}, TaskError,
        (r"that matches `loss \(\?P<val_error>\\S\+\)`\. Its output fits task\.metrics: \{pattern: 'error\\s\+"
         r"\(\?P<error>\S+\)'\}\. The output ended with: epoch 1 / error 2$"),
    ),
    "exits early": (
        "import automl; automl.report(epoch=1, val_error=0)",
        {}, TaskError, "ended with exit status 0 after epoch 1 of 4",
    ),
    "fails": (
        "import sys; print('many words', file=sys.stderr); raise ValueError('a reason')",
        {}, TaskError, r"ended with exit status 1 \(attempt 1, rank 0\): ValueError: a reason",
    ),
    "broken JSON": ("""print('{"epoch": 1, val_error: 2}')""", {"metrics": "json"}, TaskError, "is not valid JSON"),
    "nested JSON": ("""print('{"epoch":' * 6000)""", {"metrics": "json"}, TaskError, "is not valid JSON"),
    "large number": (
        """print('{"epoch": 1, "a": 1%s}' % ("0" * 400))""", {"metrics": "json"}, TaskError, "allowed: a number",
    ),
    "killed by a shell": (
        "", {"command": ["sh", "-c", "sh -c 'kill -9 $$'; exit 137"]}, LostError, "killed by signal 9",
    ),
    "aborted in a shell": (
        "", {"command": ["bash", "-c", """sh -c 'echo "what(): NaN" >&2; kill -ABRT $$'; exit $?"""]}, TaskError,
        r"exit status 134 .*: what\(\): NaN / bash: line 1: +\d+ Aborted",
    ),
    "epoch twice": (
        "import automl\nfor epoch in 1, 2, 2: automl.report(epoch=epoch, val_error=0)",
        {}, TaskError, "reported epoch 2 after epoch 2 instead of 3",
    ),
    "out of order": (
        "import automl\nfor epoch in 1, 3: automl.report(epoch=epoch, val_error=0)",
        {}, TaskError, "reported epoch 3 after epoch 1 instead of 2",
    ),
    "epoch no number": (
        """print('{"epoch": "one", "val_error": 2}')""", {"metrics": "json"}, TaskError, "whole numbers from 1",
    ),
    "no metric": ("""print('{"epoch": 1}')""", {"metrics": "json"}, TaskError, "without a metric"),
    "our metric": ("import automl; automl.report(epoch=1, cost_usd=2)", {}, TaskError, "reported 'cost_usd'"),
    "after the last": (
        "import automl\nfor epoch in 1, 2, 3, 4, 5: automl.report(epoch=epoch, val_error=0)",
        {}, TaskError, "reported epoch 5 after its last epoch, 4",
    ),
    "memory": (
        "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB')",
        {}, OutOfMemoryError, "out of memory",
    ),
    "the user's connection": (
        "raise ConnectionError('broken pipe: Connection refused by my.database')",
        {}, TaskError, "ConnectionError: broken pipe",
    ),
    "torch's connection": (
        "import sys; sys.exit('RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer')",
        {}, LostError, "Connection closed by peer",
    ),
    "no channel": (
        "import automl; automl.report(epoch=1, val_error=0)", {"environment": {"AUTOML_CHANNEL": "/none/channel"}},
        TaskError, "ConnectionError: automl.report: the trial cannot be reached at /none/channel",
    ),
    "killed": ("import os; os.kill(os.getpid(), 9)", {}, LostError, "killed by signal 9"),
    "never reports": (
        "import time; time.sleep(1000)", {"report_seconds": 1}, TaskError, "has not reported an epoch for 1 s",
    ),
    "never reports at all": (
        "while True: pass", {"first_report_seconds": 1}, TaskError,
        r"has not reported an epoch for 1 s \(task.first_report_seconds\), after epoch 0",
    ),
    "torchrun's variables": (
        "import os; os.environ['RANK']", {}, TaskError, "KeyError: 'RANK'. One rank gets .* add world_size: 1",
    ),
    "no program": ("", {"command": ["no-such-program"]}, TaskError, "cannot be run .*No such file"),
}  # fmt: skip


@pytest.mark.usefixtures("cold_and_warm")
@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_command_must_not_do_is_one_line(tmp_path, wrong):
    text, options, kind, message = WRONG[wrong]
    script(tmp_path, text)
    before = folders()
    with pytest.raises(kind, match=message) as caught:
        run(spec_of(tmp_path, options))
    assert "\n" not in str(caught.value)
    assert folders() <= before, "a folder was left"


def test_a_metric_that_is_not_finite_is_left_to_the_controller(tmp_path):
    script(tmp_path, """print('{"epoch": 1, "val_error": NaN}', flush=True); import time; time.sleep(60)""")
    grants = run(spec_of(tmp_path, {"metrics": "json"}), Grants(until=1))
    assert math.isnan(grants.measurements[0].metrics["val_error"])


@pytest.mark.parametrize(("says_so", "kept"), [("", False), (", last=epoch == 3", True)])
def test_a_command_that_ends_early_says_whether_its_last_epoch_has_a_model(tmp_path, says_so, kept):
    """Epoch 3 is no milestone, so that no checkpoint of it is wanted unless it is said to be the last one."""
    text = COUNTS.replace("checkpoint(epoch)", f"checkpoint(epoch{says_so})")
    text = text.replace("report(epoch=epoch", "report(epoch=epoch, last=epoch == 3").replace(
        "done + 1, 5", "done + 1, 4"
    )
    script(tmp_path, text)
    last = run(spec_of(tmp_path)).measurements[-1]
    assert (last.epoch, last.complete) == (3, True)
    assert (last.checkpoint is not None, not last.unsaved) == (kept, kept)


@pytest.mark.usefixtures("cold_and_warm")
def test_what_a_command_has_started_is_ended_with_it_and_a_program_is_asked_before(tmp_path, write_script):
    write_script(f"""
        import automl, pathlib, subprocess, sys
        for new in False, True:
            sleep = [sys.executable, "-c", "import time; time.sleep(600)", "{ASLEEP}"]
            subprocess.Popen(sleep, start_new_session=new)
        try:
            for epoch in range(1, 5):
                automl.report(epoch=epoch, val_error=0)
        finally:
            pathlib.Path("tidied").touch()
    """)
    assert run(spec_of(tmp_path)).epochs == [1, 2, 3, 4]
    assert left_over() == []
    (tmp_path / "tidied").unlink()
    run(spec_of(tmp_path), Grants(until=2))
    assert (tmp_path / "tidied").exists()
    assert left_over() == []


@pytest.mark.usefixtures("cold_and_warm")
def test_a_command_that_ignores_every_request_is_killed(tmp_path, write_script):
    write_script("""
        import automl, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                automl.report(epoch=1, val_error=0)
            except BaseException:
                time.sleep(0.01)
    """)
    began = time.monotonic()
    grants = run(spec_of(tmp_path, {"end_seconds": 0.5, "kill_seconds": 0.5}), Grants(until=1))
    assert grants.epochs == [1]
    assert 1.0 <= time.monotonic() - began < 20.0


@pytest.mark.parametrize("epochs", [4, 9])
def test_a_command_that_works_on_after_its_last_epoch_is_not_silent(tmp_path, write_script, epochs):
    """It writes plots or uploads its model; after nine epochs by their number, after four since it says so."""
    write_script(f"""
        import automl, time
        for epoch in range(1, {epochs} + 1):
            automl.report(epoch=epoch, last=epoch == {epochs}, val_error=0)
        time.sleep(7)
    """)
    spec = spec_of(tmp_path, {"report_seconds": 6, "end_seconds": 60}, training={"epochs": 9})
    grants = run(spec)
    assert grants.epochs == list(range(1, epochs + 1))
    assert grants.measurements[-1].wall_seconds > 7


def test_a_command_that_does_not_end_after_its_last_epoch_is_ended(tmp_path, write_script):
    write_script("""
        import automl, time
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
        time.sleep(600)
    """)
    assert run(spec_of(tmp_path, {"end_seconds": 1})).epochs == [1, 2, 3, 4]


@pytest.mark.usefixtures("cold_and_warm")
@pytest.mark.parametrize("mib", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_much_output_is_read_and_not_kept(tmp_path, write_script, mib):
    write_script(f"""
        import automl, sys
        for _ in range({mib}):
            sys.stdout.buffer.write(b"x" * 2**20)
        print("the end")
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
    """)
    spec = spec_of(tmp_path, {"log_mib": 1})
    assert run(spec).epochs == [1, 2, 3, 4]
    folder = log_folder(tmp_path, spec.study, spec.trial)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2**20
    assert log_of(spec).endswith("the end\n")


@pytest.mark.usefixtures("cold_and_warm")
def test_folders_with_our_names_are_the_users_and_temporary_files_are_deleted(tmp_path, write_script, monkeypatch):
    for name in ("trainers", "studies", "reports", "search_spaces"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    write_script(f"""
        import os, sys, automl, trainers, reports
        assert trainers.mine and reports.mine
        assert os.environ["AUTOML_CHECKPOINT_FOLDER"].startswith({str(long)!r}), os.environ
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
        heavy = {{"torch", "numpy", "ray", "optuna", "pydantic", "sqlalchemy", "studies"}} & set(sys.modules)
        assert not heavy, heavy
    """)
    short = set(Path("/tmp").glob(f"automl-trial-*-{os.getpid()}-*"))
    assert run(spec_of(tmp_path)).epochs == [1, 2, 3, 4]
    assert list(long.iterdir()) == []
    assert set(Path("/tmp").glob(f"automl-trial-*-{os.getpid()}-*")) <= short


def test_folders_of_processes_that_live_stay_whatever_their_numbers_are(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with working_folder() as mine:
        number_of_nobody = tmp_path / mine.path.name.replace(f"-{os.getpid()}-", "-4194305-")
        mine.path.rename(number_of_nobody)  # as a container's, whose processes have other numbers here
        left = tmp_path / "automl-trial-host-1-left"
        left.mkdir()
        (left / "lock").touch()
        with working_folder():
            assert number_of_nobody.exists()
            assert not left.exists()


def test_nothing_happens_outside_a_trial(tmp_path):
    script(tmp_path, COUNTS)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AUTOML_")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


STARTS_A_PROCESS = f"""
    import automl, signal, subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{ASLEEP}"], start_new_session=True)
    print("started", flush=True)
    time.sleep(600)
"""

FORKS = """
    import os, pathlib, time
    if os.fork() == 0:
        os.setsid()
        pathlib.Path("new").write_text(str(os.getpid()))
        os.rename("new", "forked")
        time.sleep(600)
"""


def _run_rank(folder, until: int, options) -> None:
    run(spec_of(folder, options), Grants(until=until))


@contextlib.contextmanager
def rank_of_its_own(tmp_path, until: int = 9, **options):
    """Run a rank in a process that can be killed."""
    process = forking_context().Process(target=_run_rank, args=(tmp_path, until, OPTIONS | options))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


@pytest.mark.usefixtures("cold_and_warm")
@pytest.mark.xdist_group("ranks")
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("as_ray_does", [False, True])
def test_a_killed_rank_leaves_nothing_behind(tmp_path, as_ray_does):
    script(tmp_path, STARTS_A_PROCESS)
    with rank_of_its_own(tmp_path) as process:
        wait_until(lambda: len(left_over()) == 1)
        if as_ray_does:  # a worker that is told to exit kills its children first
            for child in psutil.Process(process.pid).children():
                child.kill()
    wait_until(lambda: not left_over())


@pytest.mark.usefixtures("cold_and_warm")
def test_a_command_whose_rank_is_killed_has_time_to_end(tmp_path, write_script):
    write_script("""
        import pathlib, signal, sys, time
        def tidy(*_):
            print("tidies up", flush=True)
            time.sleep(0.3)
            print("has tidied up", flush=True)
            pathlib.Path("tidied").touch()
            sys.exit()
        signal.signal(signal.SIGTERM, tidy)
        pathlib.Path("started").touch()
        time.sleep(600)
    """)
    with rank_of_its_own(tmp_path, kill_seconds=30):
        wait_until((tmp_path / "started").exists)
    wait_until((tmp_path / "tidied").exists, seconds=20)


@pytest.mark.usefixtures("cold_and_warm")
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("asks", [False, True])
def test_a_command_that_is_ending_when_its_rank_is_killed_is_not_asked_again(tmp_path, write_script, asks):
    report = "automl.report(epoch=epoch, val_error=0)"
    write_script(f"""
        import automl, pathlib, signal, sys, time
        if not {asks}:  # it hears of the end by a signal
            signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("signals").open("a").write("x"), sys.exit()))
        try:
            for epoch in range(1, 5):
                {report if asks else "print(f'error={epoch}', flush=True); time.sleep(0.1)"}
        finally:
            pathlib.Path("tidying").touch()
            time.sleep(1)
            pathlib.Path("tidied").touch()
    """)
    metrics = "report" if asks else {"pattern": "error=(?P<val_error>.)"}
    with rank_of_its_own(tmp_path, until=1, kill_seconds=30, end_seconds=30, metrics=metrics):
        wait_until((tmp_path / "tidying").exists)
    wait_until((tmp_path / "tidied").exists, seconds=20)
    assert asks or (tmp_path / "signals").read_text() == "x"


@pytest.mark.usefixtures("cold_and_warm")
def test_a_killed_supervisor_is_a_lost_rank_and_leaves_nothing_behind(tmp_path):
    script(tmp_path, FORKS + STARTS_A_PROCESS)
    forked = tmp_path / "forked"

    def kill_it() -> None:
        wait_until(lambda: len(left_over()) == 1 and forked.exists())
        left_over()[0].parent().parent().kill()

    killer = threading.Thread(target=kill_it)
    killer.start()
    with pytest.raises(LostError, match="supervisor of the command was killed"):
        run(spec_of(tmp_path))
    killer.join()
    assert left_over() == []
    wait_until(lambda: not psutil.pid_exists(int(forked.read_text())))  # its new parent reaps it


RANKS = """
    import automl, json, os
    import torch.distributed as dist, torch
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(rank), str(size))
    cluster = json.loads(os.environ["TF_CONFIG"])
    assert cluster["task"] == {"type": "worker", "index": rank} and len(set(cluster["cluster"]["worker"])) == size
    folder = automl.resume()
    done = int((folder / "done").read_text()) if folder else 0
    for epoch in range(done + 1, 5):
        total = torch.ones(1)
        dist.all_reduce(total)
        if kept := automl.checkpoint(epoch):
            (kept / f"of-{rank}").touch()
            if rank == 0:
                (kept / "done").write_text(str(epoch))
            dist.barrier()
        automl.report(epoch=epoch, val_error=total)
    dist.all_reduce(torch.ones(1))  # after the last epoch
    dist.destroy_process_group()
"""


@pytest.fixture
def store():
    server = StoreServer("127.0.0.1")
    host, port, secret = server.where()
    yield lambda: StoreClient(StoreAddress(host=host, port=port, secret=secret))
    server.close()


def run_ranks(spec, store, size: int, key: str, course=Grants, **grants):
    """Run all ranks of a gang in threads; returns rank 0's measurements."""
    courses = [course(**grants) for _ in range(size)]
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            run(spec, courses[rank], group=Group(rank=rank, world_size=size), store=store(), key=key)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)
        if rank == 0:
            for other in courses:
                other.close()

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank-{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    return courses[0].measurements


@pytest.mark.large
def test_ranks_find_each_other_save_together_start_when_all_have_restored_and_meet_at_the_end(
    tmp_path, store, monkeypatch
):
    text = RANKS.replace("folder = automl.resume()", "print('rank', rank); folder = automl.resume()")
    text = text.replace(
        "import automl, json, os",
        """import automl, json, os, pathlib
    has_files = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"], "done").exists()
    pathlib.Path("has-files-" + os.environ["RANK"]).write_text(str(has_files))""",
    )
    script(tmp_path, text)
    spec = spec_of(tmp_path, {"end_seconds": 120}, world_size=2)
    first = run_ranks(spec, store, 2, "a", until=2)
    assert [(one.epoch, one.metrics["val_error"]) for one in first] == [(1, 2.0), (2, 2.0)]
    logs = logs_in(log_folder(tmp_path, spec.study, spec.trial))
    assert [re.findall("rank .", path.read_text()) for path in logs.values()] == [["rank 0"], ["rank 1"]]

    def slow(*of_checkpoint):
        time.sleep(1.5)  # rank 0, whose folder the other one uses
        put_files(*of_checkpoint)

    monkeypatch.setattr("trainers.commands.command_trainer.put_files", slow)

    class Waits(Grants):
        def until(self, epoch):  # as a controller, which grants no epoch beyond the last
            if epoch < 4:
                return 4
            self._closed.wait()
            return None

    began = time.monotonic()
    resumed = replace(spec, attempt=2, resume_from=first[-1].checkpoint)
    assert [one.epoch for one in run_ranks(resumed, store, 2, "b", course=Waits)] == [3, 4]
    assert time.monotonic() - began < 110
    assert [(tmp_path / f"has-files-{rank}").read_text() for rank in range(2)] == ["True", "True"]


def test_a_rank_hears_that_another_one_could_not_start(tmp_path, store):
    script(tmp_path, RANKS)
    spec = spec_of(tmp_path, world_size=2)
    (tmp_path / "damaged.pt").write_bytes(b"damaged")
    errors = {}

    def one(rank: int) -> None:
        own = replace(spec, attempt=2, resume_from=str(tmp_path / "damaged.pt")) if rank == 0 else spec
        with pytest.raises(TrainingError) as caught:
            run(own, group=Group(rank=rank, world_size=2), store=store(), key="c")
        errors[rank] = caught.value

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert isinstance(errors[0], CheckpointError)
    assert isinstance(errors[1], LostError)
    assert re.search("another rank has failed: rank 0: .*damaged.pt", str(errors[1]))


def test_a_rank_may_ask_for_a_checkpoint_long_before_rank_0_and_no_keys_stay(tmp_path, write_script, store):
    write_script("""
        import automl, os, time
        automl.resume()
        for epoch in range(1, 5):
            if os.environ["RANK"] == "0" and epoch == 1:
                time.sleep(2)
            kept = automl.checkpoint(epoch)
            assert (kept is not None) == (epoch in (2, 4)) == (automl.checkpoint(epoch) is not None)
            automl.report(epoch=epoch, val_error=0)
    """)
    client = store()
    impatient = lambda: StoreClient(client._address, timeout_seconds=1.0)  # noqa: E731
    assert [one.epoch for one in run_ranks(spec_of(tmp_path, world_size=2), impatient, 2, "e")] == [1, 2, 3, 4]
    assert client.num_keys() == 0


def test_each_program_sees_the_gpus_of_all_ranks_of_its_machine(tmp_path, write_script, store, monkeypatch):
    devices = {0: "3", 1: "GPU-1f2e"}

    def with_a_gpu(folder, address, *, one_host, ports):
        rank = int(threading.current_thread().name.removeprefix("rank-"))
        return replace(own_place(folder, address, one_host=one_host, ports=ports), devices=devices[rank])

    monkeypatch.setattr("trainers.commands.command_trainer.own_place", with_a_gpu)
    write_script("""
        import automl, os, pathlib, time
        rank = os.environ["LOCAL_RANK"]
        pathlib.Path(f"new-{rank}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        os.replace(f"new-{rank}", f"sees-{rank}")
        while not all(pathlib.Path(f"sees-{one}").exists() for one in range(2)):
            time.sleep(0.01)
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
    """)
    spec = spec_of(tmp_path, world_size=2)
    assert len(run_ranks(spec, store, 2, "gpus")) == 4
    assert [(tmp_path / f"sees-{rank}").read_text() for rank in range(2)] == ["3,GPU-1f2e"] * 2


def test_a_program_sees_the_gpu_of_its_rank_and_where_to_log_unless_its_environment_says_so(tmp_path, monkeypatch):
    database = tmp_path / "mlflow.db"
    database.touch()
    given = OwnLogging(study="mine", study_uid="7", mlflow=f"sqlite:///{database}").variables(3, 1)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow's clients leave it there in other tests
    monkeypatch.setenv("WANDB_NAME", "a name of my own")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    printed = "for name, value in sorted(os.environ.items()): print(name, value)"
    script(tmp_path, f"import os\n{printed}\n{textwrap.dedent(COUNTS)}")
    spec = spec_of(tmp_path, environment=given)
    run(spec)
    said = log_of(spec).splitlines()
    assert "CUDA_VISIBLE_DEVICES 5" in said
    assert "WANDB_RUN_GROUP mine" in said
    assert "WANDB_NAME a name of my own" in said
    assert f"MLFLOW_TRACKING_URI sqlite:///{database}" in said
    assert "MLFLOW_EXPERIMENT_NAME mine" in said
    database.unlink()  # as on another machine, where a file of this name would be made and never looked at
    run(replace(spec, attempt=2))
    later = max(logs_in(log_folder(tmp_path, spec.study, spec.trial).resolve()).items())[1].read_text()
    assert "WANDB_RUN_GROUP mine" in later
    assert "MLFLOW_TRACKING_URI" not in later
    assert "MLFLOW_EXPERIMENT_NAME" not in later
