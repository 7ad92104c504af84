"""Which trial trained on which device, from when to when."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reports.page import render
from reports.timeline import MOST_BARS, timeline, timeline_line
from studies.records.records import AttemptRecord, ChargeKind, ChargeRecord, StudyRecord
from tests.support.study_factory import START, build_study


def charge(kind: ChargeKind, trial: int | None, slots: tuple[int, ...], start: float, end: float) -> ChargeRecord:
    return ChargeRecord(
        kind=kind, trial=trial, attempt=None if trial is None else 1, slots=len(slots), seconds=end - start,
        usd_per_slot_hour=1.0, cost_nano_usd=1, charged_at=START + timedelta(seconds=end), slot_numbers=slots,
    )  # fmt: skip


def study_of(*charges: ChargeRecord, trials: int = 3) -> StudyRecord:
    return replace(build_study(trials, states=("complete",)), charges=charges)


def bars(study: StudyRecord) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """Start and end of the bars by device and kind, in the axis's unit."""
    figure: Any = timeline(study)
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for trace in figure["data"]:
        if trace["type"] == "bar":
            for slot, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True):
                found.setdefault((slot, trace["name"]), []).append((base, pytest.approx(base + length)))
    return found


def test_each_device_has_its_own_row_and_epochs_of_a_trial_are_one_bar() -> None:
    found = bars(
        study_of(
            charge("start", 0, (0, 1), 0, 2), charge("train", 0, (0, 1), 2, 6), charge("train", 0, (0, 1), 6, 10),
            charge("idle", None, (1,), 10, 20), charge("train", 1, (0,), 10, 20),
        )
    )  # fmt: skip
    assert found == {
        (0, "start"): [(0, 2)], (1, "start"): [(0, 2)], (0, "train"): [(2, 10), (10, 20)], (1, "train"): [(2, 10)],
        (1, "idle"): [(10, 20)],
    }  # fmt: skip


def test_time_without_a_pool_is_left_out_and_earlier_versions_say_nothing() -> None:
    study = study_of(charge("train", 0, (0,), 0, 100), charge("train", 1, (0,), 7300, 7400))
    assert [begin for begin, _ in bars(study)[0, "train"]] == pytest.approx([0, 100 / 60], rel=1e-4), "in minutes"
    figure: Any = timeline(study)
    assert "2 h later" in figure["layout"]["annotations"][0]["text"]
    assert "gaps left out" in figure["layout"]["xaxis"]["title"]["text"]
    study = build_study(6)
    unknown = replace(study, charges=tuple(replace(one, slot_numbers=()) for one in study.charges))
    assert timeline(unknown) is None
    assert "What each device did" not in render(unknown)
    assert "What each device did" in render(study)


def test_a_fault_is_a_mark_with_its_reason() -> None:
    study = study_of(charge("train", 0, (0, 1), 0, 10), charge("lost", 0, (0, 1), 10, 15))
    attempt = AttemptRecord(
        attempt=1, world_size=2, start_epoch=0, slots=(0, 1), outcome="lost", started_at=START,
        ended_at=START + timedelta(seconds=15),
    )  # fmt: skip
    trial = replace(study.trials[0], attempts=(attempt,), error="Traceback\nActorDiedError: <b>gone</b>")
    figure: Any = timeline(replace(study, trials=(trial, *study.trials[1:])))
    (fault,) = [trace for trace in figure["data"] if trace["name"] == "fault"]
    assert (fault["x"], fault["y"]) == ([15.0, 15.0], [0, 1])
    assert "lost" in fault["text"][0]
    assert "ActorDiedError: &lt;b&gt;gone" in fault["text"][0], "plotly would render the markup"
    assert "there was 1 fault" in timeline_line(replace(study, trials=(trial, *study.trials[1:])))


def test_a_long_study_is_divided_into_parts_that_add_up() -> None:
    charges = []
    for number in range(3 * MOST_BARS):
        charges += [charge("start", number, (0,), 10 * number, 10 * number + 2)]
        charges += [charge("train", number, (0,), 10 * number + 2, 10 * number + 10)]
    figure: Any = timeline(study_of(*charges))
    drawn = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert sum(len(trace["x"]) for trace in drawn) <= MOST_BARS
    assert sum(sum(trace["x"]) for trace in drawn) == pytest.approx(30 * MOST_BARS / 3600, rel=1e-3)
    assert "train 80 %" in drawn[0]["hovertext"][5]


def test_sentences_count_the_time_of_all_devices_in_full() -> None:
    study = study_of(
        charge("train", 0, (0, 1), 0, 30), charge("idle", None, (0,), 30, 60), charge("idle", None, (1,), 30, 40)
    )
    assert timeline_line(study).startswith(
        "Of 1 min 40 s of all devices together 60 % trained epochs that count and 40 % "
    )
    told = timeline_line(study_of(charge("train", 0, (0,), 0.0, 997.0), charge("idle", None, (0,), 997.0, 1000.0)))
    assert "100 % trained epochs that count and 0.3 % was idle" in told
