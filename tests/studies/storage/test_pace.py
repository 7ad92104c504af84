"""The views take a bounded share of a core, and of the lowest priority only what is idle anyway."""

import os
import threading
from pathlib import Path

import pytest

from studies.storage.views import view_pace
from studies.storage.views.view_pace import LOADING_NICENESS, FreeCores, Pace, ProcessorBudget, idle_core_seconds


def test_passes_take_no_more_than_their_share_of_the_budget_of_all_views() -> None:
    """Each pass takes 0.3 s of a core, as fast as it may."""
    budget, now, used = ProcessorBudget(0.0, share=0.1, saved_seconds=1.0), 0.0, 0.0
    while now < 300:
        used += 0.3
        now += 0.3
        now += budget.use(0.3, now)
    assert 29 < used <= 0.1 * now + 1.0 + 0.3
    budget = ProcessorBudget(0.0, share=0.1, saved_seconds=1.0)
    assert budget.use(0.9, 1000.0) == 0.0
    assert budget.use(0.6, 1000.0) == pytest.approx(5.0)


class Cores:
    """Two cores, of which some are idle."""

    def __init__(self) -> None:
        self.now, self.idle = 0.0, 0.0

    def go_on(self, seconds: float, idle: float) -> None:
        self.now += seconds
        self.idle += seconds * idle


def test_idle_cores_are_those_since_the_last_measurement() -> None:
    cores = Cores()
    free = FreeCores(lambda: cores.idle, lambda: cores.now)
    cores.go_on(2.0, 1.5)
    assert free.number() == pytest.approx(1.5)
    cores.go_on(0.1, 0.0)
    assert free.number() == pytest.approx(1.5), "too short a time to tell"
    cores.go_on(1.9, 0.0)
    assert free.number() == 0.0
    unknown = FreeCores(lambda: None, lambda: cores.now)
    cores.go_on(2.0, 2.0)
    assert unknown.number() == 0.0


def scheduling(idle: float, *, is_hurried: bool = False) -> tuple[int, tuple[int, int]]:
    """Policy of a pass, and policy and niceness with which a view is loaded."""
    cores, hurried, found = Cores(), threading.Event(), []
    if is_hurried:
        hurried.set()
    made = Pace(lambda: False, hurried, free_cores=FreeCores(lambda: cores.idle, lambda: cores.now))
    cores.go_on(2.0, idle)
    policy = made.carry_out(lambda: os.sched_getscheduler(0))[0]
    made.load(lambda: found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))))
    for failing in (made.load, made.carry_out):
        with pytest.raises(ZeroDivisionError):
            failing(lambda: 1 / 0)
    made.close()
    return policy, found[0]


def test_what_views_do_is_an_idle_thread_s_only_where_a_core_is_idle_and_nobody_waits() -> None:
    own = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    assert scheduling(1.0) == (os.SCHED_IDLE, (os.SCHED_IDLE, 19))
    assert scheduling(0.0) == (own[0], (own[0], LOADING_NICENESS)), "it would starve, and keep the store locked"
    assert scheduling(1.0, is_hurried=True) == (own[0], own)
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == own


def test_a_rest_is_short_for_a_command_that_waits_and_none_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("studies.storage.views.view_pace.time.sleep", slept.append)
    hurried = threading.Event()
    hurried.set()
    Pace(lambda: False, hurried).rest(60.0)
    assert slept == [view_pace.HURRIED_SECONDS]
    Pace(lambda: True, hurried).rest(60.0)
    assert len(slept) == 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux tells")
def test_the_system_tells_how_long_cores_were_idle() -> None:
    first, second = idle_core_seconds(), idle_core_seconds()
    assert first is not None
    assert second is not None
    assert second >= first > 0
