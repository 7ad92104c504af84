"""No limit of a user or a project is ever passed, whichever jobs start, spend, end and go on in which order."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from studies.queueing.accounts import account, allowance, overdrawn
from studies.queueing.jobs import Run
from studies.records.records import NANO
from tests.studies.queueing.test_turns import job


def run_of(cap: int | None) -> Run:
    return Run(id=1, worker="w", slot_numbers=(0,), cap_nano_usd=cap, started_at=0.0, ended_at=None, outcome=None)


def test_a_cap_is_the_own_budget_or_what_was_spent_and_the_rest_of_the_poorest_account() -> None:
    assert allowance(job(1, limit_nano_usd=5), []).cap_nano_usd == 5
    assert allowance(job(1), []).cap_nano_usd is None
    jobs = [job(1, user="bob", limit_nano_usd=100)]
    assert allowance(jobs[0], [account("user", "ann", 0, jobs)]).cap_nano_usd == 100
    jobs = [job(1, spent_nano_usd=30, limit_nano_usd=1000), replace(job(2, spent_nano_usd=10), run=run_of(60))]
    ann = account("user", "ann", 200, jobs)
    assert (ann.spent_nano_usd, ann.promised_nano_usd, ann.rest_nano_usd) == (40, 50, 110)
    assert allowance(jobs[0], [ann, account("project", "p", 150, jobs)]).cap_nano_usd == 30 + 60


def test_a_job_waits_for_money_and_says_whose_also_at_a_limit_of_no_dollars() -> None:
    jobs = [job(1, spent_nano_usd=2 * NANO, limit_nano_usd=9 * NANO)]
    found = allowance(jobs[0], [account("user", "ann", 2 * NANO, jobs)])
    assert found.problem == "waits for money: user ann: $2 of $2 are spent"
    for budget in (None, 5 * NANO):
        jobs = [job(1, limit_nano_usd=budget)]
        for used_up in (None, 0):
            waits = replace(jobs[0], used_up_nano_usd=used_up)
            assert allowance(waits, [account("user", "ann", 0, jobs)]).problem == (
                "waits for money: user ann: $0 of $0 are spent"
            )


def test_a_job_whose_own_budget_is_used_up_starts_to_be_closed_though_its_user_had_no_money_before() -> None:
    done = job(1, spent_nano_usd=100, limit_nano_usd=100)
    assert allowance(done, [account("user", "ann", 100, [done])]).problem == "", "it waits for nobody"
    capped = job(1, spent_nano_usd=99, limit_nano_usd=100, used_up_nano_usd=100)
    assert allowance(capped, [account("user", "ann", 100, [capped])]).problem.startswith("waits for money")
    assert allowance(capped, [account("user", "ann", 200, [capped])]).problem == ""


def test_jobs_drain_when_a_limit_is_set_or_lowered_but_not_one_that_is_late_in_closing() -> None:
    free, capped = replace(job(1), run=run_of(None)), replace(job(2, user="bob"), run=run_of(90))
    jobs = [free, capped]
    assert overdrawn(jobs, [account("user", "ann", 1000, jobs)]) == [free]
    assert overdrawn(jobs, [account("user", "bob", 80, jobs)]) == [capped]
    assert overdrawn(jobs, [account("user", "bob", 90, jobs)]) == []
    late = replace(job(1, spent_nano_usd=53), run=run_of(50))
    other = replace(job(2), run=run_of(50))
    assert overdrawn([late, other], [account("user", "ann", 100, [late, other])]) == [other]
    ended = [replace(late, run=None), other]
    assert overdrawn(ended[1:], [account("user", "ann", 100, ended)]) == [other]
    at_its_cap = replace(late, spent_nano_usd=50)
    assert overdrawn([at_its_cap, other], [account("user", "ann", 100, [at_its_cap, other])]) == []


@given(
    limits=st.fixed_dictionaries({"a": st.integers(0, 500), "b": st.integers(0, 500), "p": st.integers(0, 800)}),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["start", "spend", "end"]), st.integers(0, 300)), max_size=60
    ),
)
def test_no_limit_is_passed(limits: dict[str, int], steps: list[tuple[int, str, int]]) -> None:
    """A run spends up to its cap and no more: that is what the budget of a study promises."""
    jobs = [job(n, user="ab"[n % 2], limit_nano_usd=[None, 50, 400][n % 3]) for n in range(6)]

    def accounts() -> list[Any]:
        return [account("user", "a", limits["a"], jobs), account("user", "b", limits["b"], jobs),
                account("project", "p", limits["p"], jobs)]  # fmt: skip

    for n, what, amount in steps:
        one = jobs[n]
        if what == "start" and one.run is None:
            found = allowance(one, accounts())
            if not found.problem:
                jobs[n] = replace(one, run=run_of(found.cap_nano_usd))
        elif what == "spend" and one.run is not None:
            cap = one.run.cap_nano_usd
            assert cap is not None
            jobs[n] = replace(one, spent_nano_usd=max(min(one.spent_nano_usd + amount, cap), one.spent_nano_usd))
        elif what == "end":
            jobs[n] = replace(one, run=None)
        for each in accounts():
            assert each.spent_nano_usd + each.promised_nano_usd <= each.limit_nano_usd
