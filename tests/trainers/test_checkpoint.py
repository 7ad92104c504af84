"""Checkpoints and exported models."""

import contextlib
import errno
import io
from pathlib import Path

import pytest
import torch

from tests.support.trainer_pool import BLOBS, HERE, Blobs, run_trial, spec_of
from trainers.checkpoints.checkpoint import load_model, read_checkpoint, write_atomically
from trainers.checkpoints.model_export import _lines_that_load, export_model, load, load_exported
from trainers.contract.task_loading import TaskLoadError
from trainers.failures import CheckpointError, StorageError
from trainers.loop.evaluation import evaluate
from trainers.protocol import LostError, OutOfMemoryError, TrainingError
from trainers.ranks.process_group import Group
from trainers.ranks.rank_messages import Failed


@pytest.fixture
def trial(tmp_path):
    spec = spec_of(milestones=(1, 3), checkpoint_folder=str(tmp_path / "trial-0"))
    return spec, run_trial(Group(), spec)


def test_milestones_and_times_have_checkpoints_that_say_what_they_are_and_give_models(trial, tmp_path):
    _, result = trial
    written = [m.checkpoint and Path(m.checkpoint).name for m in result["measurements"]]
    assert written == ["epoch-0001.attempt-1.pt", None, "epoch-0003.attempt-1.pt"]
    assert sorted(path.name for path in (tmp_path / "trial-0").iterdir()) == [written[0], written[2]]
    spec, result = trial
    path = result["measurements"][-1].checkpoint
    content = read_checkpoint(path)
    assert content["position"] == {"epoch": 3, "step": 12}
    assert content["spec"]["params"] == spec.params
    assert content["metrics"] == result["measurements"][-1].metrics
    for name, value in load_model(path, BLOBS, (HERE,)).state_dict().items():
        assert torch.equal(value, result["weights"][name])
    spec = spec_of(checkpoint_folder=str(tmp_path), checkpoint_every_seconds=0.0)
    assert all(m.checkpoint for m in run_trial(Group(), spec)["measurements"])
    spec = spec_of(checkpoint_every_seconds=0.0)
    assert not any(m.checkpoint for m in run_trial(Group(), spec)["measurements"])


def test_a_missing_or_damaged_checkpoint_is_named(trial, tmp_path):
    _, result = trial
    path = Path(result["measurements"][-1].checkpoint)
    assert result["measurements"][-1].checkpoint_bytes == path.stat().st_size > 0
    path.write_bytes(path.read_bytes()[:500])
    for resume_from, words in [(path, "damaged"), (tmp_path / "none.pt", "is missing")]:
        with pytest.raises(CheckpointError, match=words) as caught:
            run_trial(Group(), spec_of(resume_from=str(resume_from)))
        assert caught.value.failure == "error"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_disk_that_gives_no_file_for_a_moment_has_the_checkpoint_still(trial, monkeypatch, code):
    """Else the trial would go back to an earlier checkpoint, and delete a good one."""
    path = trial[1]["measurements"][0].checkpoint
    faults = [OSError(code, "the disk is away")]
    load_file = torch.load

    def load_later(*args, **kwargs):
        if faults:
            raise faults.pop()
        return load_file(*args, **kwargs)

    monkeypatch.setattr(torch, "load", load_later)
    with pytest.raises(StorageError, match="the disk is away") as caught:
        run_trial(Group(), spec_of(resume_from=path))
    assert Failed.of(caught.value, has_begun=False).failure == "storage"
    assert [m.epoch for m in run_trial(Group(), spec_of(resume_from=path))["measurements"]] == [2, 3]


def test_disks_that_are_away_and_memory_that_runs_out_damage_no_checkpoint(trial, tmp_path, monkeypatch):
    path = Path(trial[1]["measurements"][0].checkpoint)
    study = tmp_path / "disk" / "study"
    with pytest.raises(StorageError, match="No such file"):
        read_checkpoint(study / "trial-0" / path.name)
    study.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="is missing") as caught:
        read_checkpoint(study / "trial-0" / path.name)
    assert Failed.of(caught.value, has_begun=False).failure == "unreadable"
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        read_checkpoint(study)
    assert Failed.of(caught.value, has_begun=False).failure == "unreadable"

    def load(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(OutOfMemoryError):
        read_checkpoint(trial[1]["measurements"][0].checkpoint)


@pytest.mark.parametrize(
    ("raised", "error", "failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemoryError, "out_of_memory"),
        (MemoryError(), OutOfMemoryError, "out_of_memory"),
        (RuntimeError("CUDA error: unspecified launch failure"), LostError, "lost"),
        (RuntimeError("size mismatch for weight"), CheckpointError, "unreadable"),
    ],
)
def test_a_device_that_fails_while_a_trial_resumes_says_nothing_of_the_file(trial, monkeypatch, raised, error, failure):
    def load_state_dict(*_args, **_kwargs):
        raise raised

    path = trial[1]["measurements"][0].checkpoint
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", load_state_dict)
    with pytest.raises(error) as caught:
        run_trial(Group(), spec_of(resume_from=path))
    assert Failed.of(caught.value, has_begun=False).failure == failure


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), LostError),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError),
        (RuntimeError("cannot pickle this"), CheckpointError),
    ],
)
def test_a_device_that_fails_while_a_checkpoint_is_written_says_nothing_of_the_content(
    tmp_path, monkeypatch, raised, error
):
    def save(*_args, **_kwargs):
        raise raised

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(error) as caught:
        write_atomically({"a": 1}, tmp_path / "a.pt")
    assert type(caught.value) is error
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_trial_or_model_is_refused(trial):
    _, result = trial
    path = result["measurements"][-1].checkpoint
    with pytest.raises(CheckpointError, match="has params"):
        run_trial(Group(), spec_of(params={"learning_rate": 0.2}, resume_from=path))
    content = read_checkpoint(path)
    content["model"].popitem()
    write_atomically(content, Path(path))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        run_trial(Group(), spec_of(resume_from=path))


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "file.pt"
    write_atomically({"a": 1}, path)
    with pytest.raises(CheckpointError, match="cannot write"):
        write_atomically({"a": 2}, path / "below-a-file.pt")

    class Full:
        def __reduce__(self):
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        write_atomically({"a": Full()}, path)
    assert torch.load(path, weights_only=True) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_exported_model_gives_the_recorded_metrics_by_instructions_of_any_version(trial, tmp_path):
    _, result = trial
    last = result["measurements"][-1]
    out = tmp_path / "best.pt"
    exported = export_model(last.checkpoint, out, {"study_spec": {"study": "test"}})
    assert exported["epoch"] == 3
    assert load_exported(out)["study_spec"] == {"study": "test"}
    model, task, params = load(out, BLOBS, (HERE,))
    found = evaluate(model, task, params)
    assert {name: last.metrics[name] for name in found} == pytest.approx(found, rel=1e-12)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(exported["how_to_load"], "how_to_load", "exec"), {})
    assert f"'val_error': {last.metrics['val_error']}" in printed.getvalue()
    # Those of earlier versions do not.
    content = {"spec": {"task": "mine:train"}}
    for name in ("model", "generator"):
        lines = _lines_that_load("one.pt", content, {name: {}, "optimizer": {}}, None).splitlines()
        assert lines[-1].startswith(f"{name}.load_state_dict(state[{name!r}])")


def test_lines_that_a_checkpoint_brings_are_said_to_be_its_own_and_names_stay_text() -> None:
    content = {"spec": {"task": "mine:train"}, "how_to_load": "import os; os.system('id')\x1b[2J"}
    lines = _lines_that_load("one.pt", content, {"a\nimport os": {}}, None)
    assert (
        "# The following lines come from the checkpoint. Read them before you run them.\nimport os; os.system" in lines
    )
    assert "\x1b" not in lines
    assert "\nimport os\n" not in lines
    files = _lines_that_load("one.pt", content | {"files": {"a\nimport os": None}}, None, None)
    assert "\nimport os" not in files
    for name in ("../out.py", "/etc/cron.d/own", "a/../../b"):
        with pytest.raises(CheckpointError, match="which is outside of its folder"):
            _lines_that_load("one.pt", content | {"files": {name: None}}, None, None)


def test_what_is_no_exported_model_is_refused_and_how_to_trust_one_is_told(trial, tmp_path):
    _, result = trial
    with pytest.raises(CheckpointError, match="not an exported model"):
        load(result["measurements"][-1].checkpoint, BLOBS)
    with pytest.raises(CheckpointError, match="missing"):
        export_model(tmp_path / "none.pt", tmp_path / "out.pt")
    _, result = trial
    export_model(result["measurements"][-1].checkpoint, tmp_path / "best.pt")
    with pytest.raises(TaskLoadError) as caught:
        load(tmp_path / "best.pt")
    assert str(caught.value).endswith(f"trust the code, pass task='{BLOBS}'")
    assert "\n" not in str(caught.value)
    assert isinstance(load(tmp_path / "best.pt", Blobs())[1], Blobs)


HOSTILE: dict[str, dict[str, object]] = {
    "a function of the library": {"task": "subprocess:Popen", "task_options": {"args": "touch PATH", "shell": True}},
    "a module beside the file": {"task": "evil_task:Evil", "python_path": ["FOLDER"]},
    "a module that shadows another": {"task": "json:loads", "task_options": {"s": "1"}, "python_path": ["FOLDER"]},
    "an option of a built-in task": {"task": "digits", "task_options": {"__class__": "x"}},
    "a task that is no text": {"task": ["subprocess:Popen"]},
    "options that are no mapping": {"task": "digits", "task_options": ["x"]},
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_runs_nothing(trial, tmp_path, hostile, monkeypatch):
    """Loading, exporting and resuming of files that name code: none of it is imported or called."""
    _, result = trial
    monkeypatch.chdir(tmp_path)
    touched = tmp_path / "touched"
    for name in ("evil_task", "json"):
        (tmp_path / "evil").mkdir(exist_ok=True)
        (tmp_path / "evil" / f"{name}.py").write_text(f"open({str(touched)!r}, 'w')\nEvil = loads = dict\n")
    text = repr(hostile).replace("PATH", str(touched)).replace("FOLDER", str(tmp_path / "evil"))
    content = read_checkpoint(result["measurements"][-1].checkpoint)
    content["spec"] |= eval(text)
    checkpoint, exported = tmp_path / "hostile.pt", tmp_path / "exported.pt"
    torch.save(content, checkpoint)
    torch.save({"weights": content["model"], "params": {}, "task_options": {}, **eval(text)}, exported)
    for load_it in (
        lambda: load_model(checkpoint),
        lambda: load(exported),
        lambda: run_trial(Group(), spec_of(resume_from=str(checkpoint))),
        lambda: export_model(checkpoint, tmp_path / "out.pt", of_task=BLOBS),
    ):
        with pytest.raises(TrainingError) as caught:
            load_it()
        assert isinstance(caught.value, CheckpointError | TaskLoadError)
        assert "\n" not in str(caught.value)
    assert not touched.exists()


def test_a_pickle_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"weights": Evil()}, tmp_path / "evil.pt")
    for load_it in (load, load_model, load_exported):
        with pytest.raises(CheckpointError, match="is damaged"):
            load_it(tmp_path / "evil.pt")
    assert not (tmp_path / "touched").exists()
