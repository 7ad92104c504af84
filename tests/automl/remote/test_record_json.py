"""A record that goes over HTTP is the same record afterwards, but for its passwords."""

import math
from dataclasses import replace
from pathlib import Path

from automl.remote.record_json import read, written
from search_spaces.suggestions import Asked, float_domain
from studies.storage.reading.reader import load_study
from tests.support.stored_study import StoredStudy


def test_it_is_the_same_record(tmp_path: Path) -> None:
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=3, checkpoints=(2,), cost_nano_usd=123)
    record = load_study(stored.store, "small")
    assert read(written(record)) == record
    assert repr(read(written(record))) == repr(record)  # whole numbers stay whole, as they are printed


def test_what_a_trial_asked_for_and_infinite_metrics_stay(tmp_path: Path) -> None:
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=1)
    record = load_study(stored.store, "small")
    [trial] = record.trials
    [epoch] = trial.epochs
    asked = {"width": Asked(0.5, float_domain(0.1, 1.0))}
    odd = replace(epoch, metrics={**epoch.metrics, "val_error": math.inf})
    record = replace(record, trials=(replace(trial, asked=asked, epochs=(odd,)),))
    assert read(written(record)) == record


def test_passwords_stay_at_the_service(tmp_path: Path) -> None:
    record = load_study(StoredStudy(tmp_path).store, "small")
    uri = "postgresql://ann:secret@host/mlflow"
    text = written(replace(record, mlflow_uri=uri, spec={**record.spec, "mlflow": uri}))
    assert "secret" not in text
    assert "postgresql" in text
