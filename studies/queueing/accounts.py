"""Money of users and projects: spent, reserved for running jobs, and available for the next job.

A study never exceeds its budget, and a run never exceeds its cap on the study's spending. The caps of running jobs and
all other spending together never exceed the limit of a user or project. If a controller dies, the cap of its run counts
until its last seconds are charged. A job that confirms another user's study is charged in that study's ledger, but paid
by the job's user. A job whose run ended at its cap waits for enough money for an epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from studies.queueing.jobs import Job
from studies.records.records import NANO

AccountKind = Literal["user", "project"]
LEAST_SHARE = 0.01  # share of a job's requested money below which it waits: less is not worth the start of a pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A limit on the total spending of a user or project."""

    kind: AccountKind
    name: str
    limit_nano_usd: int
    spent_nano_usd: int
    promised_nano_usd: int  # amount that running jobs, and jobs whose controllers died, may still charge
    has_unlimited: bool = False  # a job runs without a cap, since it started before this limit was set

    @property
    def rest_nano_usd(self) -> int:
        """Nano-dollars neither spent nor reserved, at least 0."""
        return self._rest(self.promised_nano_usd)

    def rest_for(self, job: Job) -> int:
        """Return the nano-dollars for a new run of the job, with the amount reserved for its earlier run."""
        return self._rest(self.promised_nano_usd - (job.promised_nano_usd or 0))

    def _rest(self, promised_nano_usd: int) -> int:
        return 0 if self.has_unlimited else max(self.limit_nano_usd - self.spent_nano_usd - promised_nano_usd, 0)

    def __str__(self) -> str:
        spent, promised = self.spent_nano_usd / NANO, self.promised_nano_usd / NANO
        running = f", ${promised:.4g} promised to running jobs" if promised else ""
        return f"{self.kind} {self.name}: ${spent:.4g} of ${self.limit_nano_usd / NANO:.4g} are spent{running}"

    def is_of(self, job: Job) -> bool:
        """Return whether this account pays for a job."""
        return (job.user if self.kind == "user" else job.project) == self.name


def account(kind: AccountKind, name: str, limit_nano_usd: int, jobs: Iterable[Job]) -> Account:
    """Return an account, with its jobs' spending."""
    empty = Account(kind=kind, name=name, limit_nano_usd=limit_nano_usd, spent_nano_usd=0, promised_nano_usd=0)
    mine = [job for job in jobs if empty.is_of(job)]
    return replace(
        empty,
        spent_nano_usd=sum(job.spent_nano_usd for job in mine),
        promised_nano_usd=sum(job.promised_nano_usd or 0 for job in mine),
        has_unlimited=any(job.promised_nano_usd is None for job in mine),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """Money for a job's next run."""

    cap_nano_usd: int | None  # limit on the study's spending up to the end of the run; None is no limit
    problem: str = ""  # reason why the job cannot start, in one line; empty if it can


def allowance(job: Job, accounts: Sequence[Account]) -> Allowance:
    """Return the money for a waiting job's next run, or the reason why it has to wait."""
    mine = [one for one in accounts if one.is_of(job)]
    caps = [job.ledger_nano_usd + one.rest_for(job) for one in mine]
    if job.limit_nano_usd is not None:
        caps.append(job.limit_nano_usd)
    if not mine:
        return Allowance(cap_nano_usd=job.limit_nano_usd)
    rest = None if job.limit_nano_usd is None else job.limit_nano_usd - job.ledger_nano_usd
    if rest is not None and rest <= 0:  # the job starts only to close its study
        return Allowance(cap_nano_usd=min(caps))
    poorest = min(mine, key=lambda one: one.rest_for(job))
    wants = poorest.limit_nano_usd if rest is None else min(poorest.limit_nano_usd, rest)
    gain = poorest.rest_for(job)
    if job.used_up_nano_usd is not None:  # the rest of the cap that ended the last run pays for no epoch
        gain = min(gain, job.ledger_nano_usd + gain - job.used_up_nano_usd)
    if gain < max(LEAST_SHARE * wants, 1):
        return Allowance(cap_nano_usd=min(caps), problem=f"waits for money: {poorest}")
    return Allowance(cap_nano_usd=min(caps))


def overdrawn(running: Sequence[Job], accounts: Sequence[Account]) -> list[Job]:
    """Return running jobs that must stop because a limit was set or lowered after they started.

    They are queued again. A run above its own cap is ending already.
    """
    found = []
    for one in accounts:
        mine = [job for job in running if one.is_of(job)]
        found += [job for job in mine if job.run is not None and job.run.cap_nano_usd is None]
        if one.spent_nano_usd + one.promised_nano_usd > one.limit_nano_usd:
            found += [job for job in mine if not _is_over_its_cap(job)]
    return list({job.id: job for job in found}.values())


def _is_over_its_cap(job: Job) -> bool:
    cap = None if job.run is None else job.run.cap_nano_usd
    return cap is not None and job.ledger_nano_usd > cap
