"""Programs as strangers write them: other streams, numbers, files and flags than a script for this project has."""

from dataclasses import replace
from functools import partial

import pytest

from tests.support.command_trials import Grants, run, script, spec_of
from trainers.checkpoints.model_export import export_model
from trainers.commands.command import Command, EpochNumber, arguments, problems_of
from trainers.protocol import TaskError
from trainers.ranks.printed_output import log_folder, logs_in

pytestmark = pytest.mark.medium
ERROR = r"error (?P<val_error>\S+)"
NUMBERED = r"epoch (?P<epoch>\d+).* " + ERROR


@pytest.fixture
def write_script(tmp_path):
    return partial(script, tmp_path)


def output_of(spec) -> str:
    return next(iter(logs_in(log_folder(spec.python_path[0], spec.study, spec.trial).resolve()).values())).read_text()


@pytest.mark.parametrize("also_printed", [False, True])
def test_metrics_are_read_from_standard_error_and_from_one_stream(tmp_path, write_script, also_printed):
    """Python's logging writes to standard error; a handler more for standard output must not double the epochs."""
    write_script(f"""
        import logging, sys, time
        handlers = [logging.StreamHandler()] + [logging.StreamHandler(sys.stdout)] * {int(also_printed)}
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=handlers)
        for epoch in range(1, 5):
            logging.info("done, error %s", 1 / epoch)
            time.sleep(0.1)
    """)
    done = run(spec_of(tmp_path, {"metrics": {"pattern": ERROR}}))
    assert [one.metrics["val_error"] for one in done.measurements] == [pytest.approx(1 / e) for e in range(1, 5)]


@pytest.mark.parametrize("first", ["stderr", "stdout"])
def test_a_bar_on_the_other_stream_is_no_metric_without_a_word(tmp_path, write_script, first):
    """Metrics of standard output count, and a bar that came before them on standard error ends the trial."""
    write_script(f"""
        import sys, time
        for epoch in range(1, 5):
            if epoch > 1 or "{first}" == "stderr":
                print("10/10 error 0.9", file=sys.stderr, flush=True)
                time.sleep(0.1)
            print(f"error {{1 / epoch}}", flush=True)
            time.sleep(0.1)
    """)
    spec = spec_of(tmp_path, {"metrics": {"pattern": ERROR}})
    if first == "stdout":
        assert [one.metrics["val_error"] for one in run(spec).measurements] == [1 / epoch for epoch in range(1, 5)]
        return
    with pytest.raises(TaskError, match=r"different metrics\. Let the pattern match lines of one"):
        run(spec)


def test_a_program_is_held_until_both_streams_are_read(tmp_path, write_script):
    write_script("""
        import os, pathlib, sys
        kept = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"]) / "done"
        for epoch in range(1, 5):
            kept.write_text(str(epoch))
            print(f"epoch {epoch} error 0.5", file=sys.stderr, flush=True)
            __import__("time").sleep(5 if epoch == 2 else 0)  # while it is held
    """)
    first = run(spec_of(tmp_path, {"metrics": {"pattern": NUMBERED}}), Grants(until=2))
    assert first.measurements[1].checkpoint is not None


NUMBERS = {
    "from 0": ("epoch + 1", "epoch", [0, 1, 2, 3]),
    "steps": ("step // 250", "step", [0, 100, 250, 400, 500, 750, 1000]),
    "last steps": ("(step + 1) // 50", "step", [10, 49, 99, 120, 149, 199]),
    "parts of epochs": ("epoch", "epoch", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize("form", ["json", "pattern"])
@pytest.mark.parametrize("case", NUMBERS)
def test_epochs_are_made_of_what_a_program_counts(tmp_path, write_script, case, form):
    expression, name, printed = NUMBERS[case]
    line = f"{name} {{number}} error 0.5" if form == "pattern" else f'{{{{"{name}": {{number}}, "val_error": 0.5}}}}'
    write_script(f"""
        for number in {printed}:
            print(f'{line}', flush=True)
    """)
    metrics = {"pattern": rf"{name} (?P<{name}>\S+) {ERROR}"} if form == "pattern" else "json"
    done = run(spec_of(tmp_path, {"metrics": metrics, "epoch_from": expression}))
    assert done.epochs == [1, 2, 3, 4]
    assert all(one.metrics == {"val_error": 0.5} for one in done.measurements)


def test_epochs_from_0_are_refused_with_the_cure(tmp_path, write_script):
    write_script("""print('{"epoch": 0, "val_error": 1}')""")
    with pytest.raises(TaskError, match=r"epoch 0, but epochs are whole numbers from 1. .*epoch_from: epoch \+ 1"):
        run(spec_of(tmp_path, {"metrics": "json"}))


@pytest.mark.small
@pytest.mark.parametrize(
    "wrong", ["", "1", "epoch * 2", "a + b", "step // 0", "step // n", "f(step)", "step // 2.5", 7]
)
def test_other_expressions_are_refused(wrong):
    options = {"command": ["a"], "metrics": "json", "epoch_from": wrong}
    ((path, problem),) = problems_of(options)
    assert path == ("epoch_from",)
    assert "such as epoch + 1" in problem


@pytest.mark.small
def test_an_expression_needs_its_group_and_printed_metrics():
    assert EpochNumber.of("step").name == "step"
    no_group = {"command": ["a"], "metrics": {"pattern": NUMBERED}, "epoch_from": "step // 2"}
    assert [problem for _, problem in problems_of(no_group)] == [
        "found 'step // 2', but no pattern has a group (?P<step>...)"
    ]
    assert [path for path, _ in problems_of({"command": ["a"], "epoch_from": "epoch + 1"})] == [("epoch_from",)]


def test_several_patterns_make_one_epoch(tmp_path, write_script):
    """As pytorch/examples: the training prints often, the test once, without a number."""
    write_script("""
        import sys, time
        for epoch in range(1, 5):
            for batch in range(3):
                print(f"Train Epoch: {epoch} [{batch}/3]  Loss: {1 / (batch + epoch):.6f}", flush=True)
            print(f"Test set: Accuracy: {90 + epoch}/100 ({90 + epoch}%)", file=sys.stderr, flush=True)
            time.sleep(0.1)
    """)
    patterns = [r"Train Epoch: (?P<epoch>\d+) .*Loss: (?P<train_loss>\S+)", r"Accuracy: .*\((?P<accuracy>\d+)%\)"]
    done = run(spec_of(tmp_path, {"metrics": {"pattern": patterns}}))
    assert done.epochs == [1, 2, 3, 4]
    last = done.measurements[-1].metrics
    assert last == {"train_loss": pytest.approx(1 / 6, abs=1e-5), "accuracy": 94.0}


def test_a_pattern_may_have_the_epoch_alone(tmp_path, write_script):
    """As pytorch-cifar: `Epoch: 0` is printed before an epoch, the accuracy after it."""
    write_script("""
        for epoch in range(4):
            print(f"Epoch: {epoch}")
            print(f"Acc: {90 + epoch}%")
    """)
    patterns = [r"Epoch: (?P<epoch>\d+)", r"Acc: (?P<accuracy>\d+)%"]
    done = run(spec_of(tmp_path, {"metrics": {"pattern": patterns}, "epoch_from": "epoch + 1"}))
    assert [(one.epoch, one.metrics["accuracy"]) for one in done.measurements] == [(1, 90), (2, 91), (3, 92), (4, 93)]
    assert [problem for _, problem in problems_of({"command": ["a"], "metrics": {"pattern": patterns[:1]}})] == [
        "found Epoch: (?P<epoch>\\d+), without a metric. Add a group, (?P<val_error>...)"
    ]


@pytest.mark.parametrize(
    ("epochs", "cure"),
    [("1, 1", "several lines of an epoch .* such as the last batch"), ("10, 20", "task.epoch_from: epoch // 10")],
)
def test_epochs_out_of_order_say_how_to_count_them(tmp_path, write_script, epochs, cure):
    write_script(f"""
        for epoch in {epochs}:
            print(f"epoch {{epoch}} error 0.5")
    """)
    with pytest.raises(TaskError, match=cure):
        run(spec_of(tmp_path, {"metrics": {"pattern": NUMBERED}}))


def test_metrics_are_read_from_a_file_of_json_lines(tmp_path, write_script):
    """Lines of an earlier attempt in the same file are not this attempt's, and output has no metrics."""
    write_script("""
        import json, os, pathlib, sys, time
        kept = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"]) / "done"
        done = int(kept.read_text()) if kept.exists() else 0
        for epoch in range(done + 1, 5):
            kept.write_text(str(epoch))
            print('{"epoch": 99, "val_error": 7}', flush=True)
            with open(sys.argv[1], "a") as file:
                file.write(json.dumps({"epoch": epoch, "val_error": 1 / epoch}) + "\\n")
            time.sleep(0.4)
    """)
    options = {
        "command": ["python", "train.py", "{trial_folder}/log.jsonl"],
        "metrics": {"json_file": "{trial_folder}/log.jsonl"},
    }
    spec = spec_of(tmp_path, options)
    first = run(spec, Grants(until=2))
    assert first.epochs == [1, 2]
    again = run(replace(spec, attempt=2, resume_from=first.measurements[1].checkpoint))
    assert again.epochs == [3, 4]
    assert again.measurements[-1].metrics == {"val_error": 0.25}


def test_a_file_that_is_begun_anew_is_read_from_its_beginning(tmp_path, write_script):
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "val_error": 9}\n' * 9)
    write_script("""
        import time
        with open("log.jsonl", "w") as file:
            for epoch in range(1, 5):
                print('{"epoch": %d, "val_error": 0}' % epoch, file=file, flush=True)
                time.sleep(0.3)
    """)
    done = run(spec_of(tmp_path, {"metrics": {"json_file": "log.jsonl"}}))
    assert [one.metrics["val_error"] for one in done.measurements] == [0.0] * 4


LIKE_NANOGPT = """
    import os, sys
    from ast import literal_eval
    lr, eval_interval = 0.5, 250
    for arg in sys.argv[1:]:  # its configurator: a file to execute, or --key=value of the same type
        if "=" not in arg:
            exec(open(arg).read())
        else:
            key, value = arg.removeprefix("--").split("=")
            value = literal_eval(value)
            assert type(value) == type(globals()[key])
            globals()[key] = value
    ddp = int(os.environ.get("RANK", -1)) != -1
    print("device", "cuda" if ddp else "cpu")
    for step in range(0, 1001, eval_interval):
        print(f"step {step}: train loss {1 - lr:.4f}, val loss {1 - lr + step / 1e4:.4f}", flush=True)
"""


@pytest.mark.parametrize("is_searched", [False, True])
def test_one_rank_looks_like_torchrun_only_where_its_ranks_are_searched(tmp_path, write_script, is_searched):
    write_script(LIKE_NANOGPT)
    (tmp_path / "config.py").write_text("eval_interval = 250\n")
    options = {
        "command": ["python", "train.py", "config.py", "--lr={learning_rate}"],
        "metrics": {"pattern": r"step (?P<step>\d+): .*val loss (?P<val_loss>\S+)"},
        "epoch_from": "step // 250",
    }
    params = {"learning_rate": 0.25} | ({"world_size": 1} if is_searched else {})
    spec = spec_of(tmp_path, options, params=params)
    assert run(spec).epochs == [1, 2, 3, 4]
    assert ("device cuda" in output_of(spec)) == is_searched


@pytest.mark.small
def test_a_switch_is_a_bare_flag():
    parts = ("train.py", "--{amp}", "--{use-ema}", "-{v}", ("--{fast}",), "--opt={opt}", "--{kind}")
    values = {"amp": "true", "use_ema": "true", "v": "false", "opt": "adam", "kind": "big"}
    assert arguments(parts, values) == ["train.py", "--amp", "--use-ema", "--opt=adam", "--big"]
    assert arguments(parts, values | {"use_ema": "false", "fast": "true"})[2:4] == ["--fast", "--opt=adam"]
    command = Command.of({"command": [list(one) if isinstance(one, tuple) else one for one in parts]})
    assert [name for name, _ in command.names()] == ["amp", "use_ema", "v", "fast", "opt", "kind"]


def test_a_failure_has_the_last_words_of_both_streams(tmp_path, write_script):
    write_script("""
        import sys
        print("loading shard 7 of 9", flush=True)
        sys.exit("KeyError: 'labels'")
    """)
    with pytest.raises(TaskError, match=r"KeyError: 'labels' .standard output ended with: loading shard 7 of 9.$"):
        run(spec_of(tmp_path))


def test_a_trial_has_a_folder_of_its_own(tmp_path, write_script):
    """Scripts and data beside the spec are found from there."""
    write_script("""
        import automl, os, pathlib, sys
        assert sys.argv[1:3] == ["test-3-1", os.getcwd()], (sys.argv, os.getcwd())
        assert pathlib.Path(sys.argv[3]).read_text() == "rows"
        pathlib.Path("last.pt").touch()
        for epoch in range(1, 5):
            automl.report(epoch=epoch, val_error=0)
    """)
    (tmp_path / "data.csv").write_text("rows")
    command = ["python", "train.py", "{study}-{trial}-{attempt}", "{trial_folder}", "data.csv"]
    options = {"command": command, "folder": "{trial_folder}"}
    spec = spec_of(tmp_path, options)
    done = run(spec)
    assert done.epochs == [1, 2, 3, 4]
    assert "train.py" in done.facts.code_files
    assert (log_folder(tmp_path, "test", 3) / "files" / "last.pt").exists()
    other = replace(spec, task_options={**options, "folder": "runs/{trial}", "command": command[:2]})
    script(tmp_path, "import pathlib; pathlib.Path('made').touch()")
    with pytest.raises(TaskError, match="without a report"):
        run(other)
    assert (tmp_path / "runs" / "3" / "made").exists()


@pytest.mark.parametrize("end_seconds", [0.001, 0.1, 5])
def test_a_program_that_does_not_know_the_last_epoch_is_complete_after_it(tmp_path, write_script, end_seconds):
    write_script("""
        import itertools
        for epoch in itertools.count(1):
            print(f"epoch {epoch}, error {1 / epoch}", flush=True)
    """)
    spec = spec_of(tmp_path, {"metrics": {"pattern": NUMBERED}, "end_seconds": end_seconds})
    assert run(spec).epochs == [1, 2, 3, 4]


@pytest.mark.parametrize("last", ["epoch 2, error 0.9", "epoch 0, error 0.9", "final error 0.9"])
def test_a_final_test_that_looks_like_an_epoch_is_none(tmp_path, write_script, last):
    write_script(f"""
        import pathlib
        for epoch in range(1, 5):
            print(f"epoch {{epoch}}, error {{1 / epoch}}", flush=True)
        print("{last}", flush=True)
        pathlib.Path("done").touch()
    """)
    pattern = ERROR if last.startswith("final") else NUMBERED
    assert run(spec_of(tmp_path, {"metrics": {"pattern": pattern}})).epochs == [1, 2, 3, 4]
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("saves", ["before", "after", "best"])
def test_files_that_may_be_of_an_earlier_epoch_are_exported_with_a_word(tmp_path, write_script, saves):
    """makemore, for example, saves its model after it has printed the loss; others save only their best model."""
    write_script(f"""
        import os, pathlib, time
        kept = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"]) / "model.txt"
        for epoch in range(1, 5):
            if "{saves}" == "after" and epoch > 1:
                kept.write_text(str(epoch - 1))
            time.sleep(0.5)
            if "{saves}" == "before" or ("{saves}" == "best" and epoch == 1):
                kept.write_text(str(epoch))
            print(f"epoch {{epoch}}, error {{1 / epoch}}", flush=True)
    """)
    spec = spec_of(tmp_path, {"metrics": {"pattern": NUMBERED}})
    checkpoint = run(spec).measurements[-1].checkpoint
    assert checkpoint is not None
    written = export_model(checkpoint, tmp_path / "model.pt")
    (kept,) = written["files"].values()
    assert kept.numpy().tobytes() == {"before": b"4", "after": b"3", "best": b"1"}[saves]
    assert ("may be of an earlier epoch" in written["how_to_load"]) == (saves != "before")


def test_colours_are_no_part_of_a_number(tmp_path, write_script):
    """skorch, for example, prints the best value of a column in colour, even into a pipe."""
    write_script("""
        for epoch in range(1, 5):
            print(f"\\x1b[1;32m\\x1b[Kepoch {epoch}\\x1b[0m, error \\x1b[36m{1 / epoch}\\x1b[0m", flush=True)
    """)
    assert run(spec_of(tmp_path, {"metrics": {"pattern": NUMBERED}})).measurements[-1].metrics["val_error"] == 0.25


@pytest.mark.parametrize("line", ['print("final error 0.9", file=sys.stderr)', "print('{\"epoch\": oops')"])
def test_nothing_that_is_printed_after_the_last_epoch_fails_the_trial(tmp_path, write_script, line):
    write_script(f"""
        import json, sys
        for epoch in range(1, 5):
            print(json.dumps({{"epoch": epoch, "error": 1 / epoch}}), flush=True)
        {line}
    """)
    metrics = "json" if "oops" in line else {"pattern": r'error"?:? (?P<val_error>[0-9.]+)'}
    objective = "error" if "oops" in line else "val_error"
    assert run(spec_of(tmp_path, {"metrics": metrics})).measurements[-1].metrics[objective] == 0.25
