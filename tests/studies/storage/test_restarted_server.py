"""A study on PostgreSQL goes on when its server is stopped and started in mid-study."""

import logging
import threading

import pytest

from studies.control.machine.state import StudyMachine
from studies.money.budget import Limits
from studies.storage.writing import retrying
from tests.support.simulated_study import SimulatedStudy, checked, essence


@pytest.mark.large
def test_a_study_goes_on_when_its_server_was_away(postgres_process, postgres_url, tmp_path, monkeypatch):
    """The server is really gone for a while: its connections break, and new ones are refused."""
    monkeypatch.setattr(retrying, "RETRY_FIRST_SECONDS", 0.05)
    undisturbed = SimulatedStudy(tmp_path / "quiet", price=360.0, epochs=9)
    undisturbed.run(Limits(trials=6))
    study, refused = SimulatedStudy(tmp_path, price=360.0, epochs=9, url=postgres_url), list[str]()
    commits = 0

    def stop(_: StudyMachine) -> None:
        nonlocal commits
        commits += 1
        if commits == 15:
            postgres_process.stop()

    class Starter(logging.Handler):
        """Starts the server once a commit was refused twice."""

        def emit(self, record: logging.LogRecord) -> None:
            refused.append(record.getMessage())
            if len(refused) == 2:
                starter.start()

    starter = threading.Thread(target=postgres_process.start)
    study.on_commit = stop
    heard = Starter()
    retrying.log.addHandler(heard)
    try:
        study.run(Limits(trials=6))
    finally:
        retrying.log.removeHandler(heard)
    starter.join()
    assert len(refused) >= 2, "the server was never away"
    assert essence(study.record()) == essence(undisturbed.record())
    checked(study)
    study.store.close()
