"""Finds and writes a study's HTML report."""

from pathlib import Path

from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.views.views_process import ViewsProcess
from trainers.checkpoints.locations import is_url

LOCAL_FOLDER = "artifacts"
VIEWS_SECONDS = 30.0  # seconds that a command waits at its end for the views of Optuna and MLflow
REPORT_SECONDS = 10.0  # seconds that a command waits for MLflow to store the report


def report_path(record: StudyRecord, base_folder: Path) -> Path:
    """Return the path of a study's report: beside local checkpoints, else below the current folder."""
    checkpoints = record.spec.get("checkpoints")
    folder = checkpoints.get("folder", ".") if isinstance(checkpoints, dict) else "."
    if is_url(str(folder)):
        return Path.cwd() / LOCAL_FOLDER / record.name / "report.html"
    return (base_folder / str(folder) / record.name / "report.html").absolute()


def existing_report(record: StudyRecord) -> str | None:
    """Return the path of the study's report, or None if there is none."""
    path = report_path(record, Path.cwd())
    return str(path) if path.exists() else None


def refresh(store: Store, study: str, base_folder: Path) -> bool:
    """Update a study's copies and report. Returns whether the copies were up to date within `VIEWS_SECONDS`."""
    from reports.page import write_report  # loaded late, because most callers only ask for a report's path

    views = ViewsProcess(store.url, study)
    try:
        views.start()
        caught_up = views.wait_until_caught_up(VIEWS_SECONDS)
        record = load_study(store, study)
        report = report_path(record, base_folder)
        write_report(record, report)
        if caught_up:
            views.keep_report(report, REPORT_SECONDS)
    finally:
        views.stop()
    return caught_up
