"""Output of ranks that is followed while it is written, and begun anew when it is long."""

import os
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from automl.cli import cli
from automl.stored import rank_logs
from automl.stored.rank_logs import followed, text_of
from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.writing.changes import TrialChanged
from tests.support.stored_study import StoredStudy
from trainers.ranks.printed_output import RankLog, folders_of_trial, log_folder, log_path, logs_in


@pytest.mark.medium
def test_no_line_is_lost_when_the_file_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "LOOK_SECONDS", 0.002)
    path = log_path(tmp_path, 1, 0)
    log = RankLog(path, 2**18)  # what follows fills a file and begins another one
    is_written = threading.Event()

    def write() -> None:
        for number in range(18_000):
            log.write(f"line {number} \u00e4\n".encode())
            if number % 50 == 0:
                time.sleep(0.002)
        log.close()
        is_written.set()

    writer = threading.Thread(target=write)
    writer.start()
    text = "".join(followed(path, lambda: not is_written.is_set()))
    writer.join()
    assert text.splitlines() == [f"line {number} \u00e4" for number in range(18_000)]


@pytest.mark.medium
def test_a_log_that_is_just_being_begun_anew_does_not_end_who_follows_it(tmp_path: Path) -> None:
    path = log_path(tmp_path, 1, 0)
    log = RankLog(path, 2**17)
    log.write(b"first\n")
    log.close()
    looks = iter([True, False])

    def is_running() -> bool:
        goes_on = next(looks)
        if goes_on:
            path.replace(f"{path}.1")  # the moment between the two steps of a rotation
            path.with_suffix(".new").write_bytes(b"second\n")
            threading.Timer(0.05, path.with_suffix(".new").replace, [path]).start()
        return goes_on

    assert "".join(followed(path, is_running)) == "first\nsecond\n"


def test_what_an_older_study_of_the_same_name_has_printed_is_not_shown(tmp_path: Path) -> None:
    path = log_path(tmp_path, 1, 0)
    log = RankLog(path, 100)
    for _ in range(3):
        log.write(b"of the older study, and much of it\n")
    log.close()
    log_path(tmp_path, 2, 0).write_bytes(b"of the older study")
    os.utime(log_path(tmp_path, 2, 0), (1000.0, 1000.0))
    log = RankLog(path, 100)
    log.write(b"new\n")
    log.close()
    assert list(logs_in(tmp_path, since=2000.0)) == [(1, 0)]
    assert "".join(text_of(path)) == "new\n"


def test_what_has_confirmed_a_trial_has_logs_of_its_own(tmp_path: Path) -> None:
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=1)

    def printed(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["logs", "small", "0", *arguments, "--store", stored.store.url])
        return str(done.exception) if done.exception else done.stdout

    assert printed("--seed", "7").startswith("--seed: found 7, allowed: none")
    for seed, text in ((None, "of the search\n"), (7, "of seed 7\n"), (11, "of seed 11\n")):
        path = log_path(log_folder(tmp_path, "small", 0, seed=seed), 1, 0)
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert printed() == "of the search\n"
    assert printed("--seed", "11") == "of seed 11\n"
    assert printed("--seed", "8") == "--seed: found 8, allowed: 7, 11"
    assert len(folders_of_trial(tmp_path, "small", 0)) == 3
    stored.store.close()


def test_following_reads_the_state_of_the_trial_and_not_the_whole_study(tmp_path, monkeypatch):
    """The study is read twice a second otherwise, on the cores that train: half a second each time for 500 trials."""
    monkeypatch.setattr(rank_logs, "LOOK_SECONDS", 0.002)
    reads, waits = 0, 0
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=1)
    running = stored.store.find_trial(stored.id, number=0)
    assert running is not None
    path = log_path(log_folder(tmp_path, "small", 0), 1, 0)
    path.parent.mkdir(parents=True)
    path.write_text("begins\n")

    def read(store: Store, name: str) -> StudyRecord:
        nonlocal reads
        reads += 1
        assert reads < 10, "the study is read at each look"
        return load_study(store, name)

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            with path.open("a") as log:
                log.write("ends\n")
            ended = TrialChanged(trial_id=running.id, columns={"state": "complete"})
            stored.store.commit(stored.id, None, [ended])

    monkeypatch.setattr("automl.backend.load_study", read)
    monkeypatch.setattr(time, "sleep", sleep)
    done = CliRunner().invoke(cli, ["logs", "small", "0", "--follow", "--store", stored.store.url])
    stored.store.close()
    assert done.stdout == "begins\nends\n"
    assert (waits, reads) == (3, 1)
