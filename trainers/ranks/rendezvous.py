"""A rank before its process group forms, on this machine or under torchrun: heartbeat, wait for the others, join.

Ranks load at different speeds, but a process group has only one deadline. So each rank increments `beat R` in a store
as a heartbeat, sets `here R` once it has loaded, and waits while the other ranks' heartbeats change. In a study the
pool watches the ranks instead (`trainers.ranks.process_group`).
"""

import logging
import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainers.failures import classified
from trainers.protocol import BACKENDS, Backend, LostError
from trainers.ranks.gather_over_store import LONGEST_PAUSE_SECONDS, wait_for
from trainers.ranks.group_options import GroupOptions
from trainers.ranks.process_group import DeviceKind, Group, device_of, form_group, set_nccl_interface

log = logging.getLogger(__name__)

_BEATS_OF_A_DEADLINE = 8
_LONGEST_PERIOD_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heard:
    beats: int
    changed_at: float


class Presence:
    """Heartbeat of a rank until its process group forms, in a store of all ranks without earlier keys."""

    def __init__(self, store: Store, rank: int, world_size: int, deadline_seconds: float) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.deadline_seconds = deadline_seconds
        self.period_seconds = min(deadline_seconds / _BEATS_OF_A_DEADLINE, _LONGEST_PERIOD_SECONDS)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat."""
        self._ends.set()
        self._thread.join()

    def wait_for_all(self) -> None:
        """Wait for all ranks after loading. Raises LostError if a rank is silent for the deadline."""
        self.store.set(f"here {self.rank}", "yes")
        watch = _Watch(self, time.monotonic())
        here = [f"here {rank}" for rank in range(self.world_size)]
        wait_for(
            self.store, here, "their start", math.inf, is_over=lambda: watch.look(time.monotonic()),
            longest_pause_seconds=min(LONGEST_PAUSE_SECONDS, self.period_seconds),
        )  # fmt: skip
        self.close()

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone, which this rank's next request reports
            while True:
                self.store.add(f"beat {self.rank}", 1)
                if self._ends.wait(self.period_seconds):
                    return


class _Watch:
    def __init__(self, presence: Presence, now: float) -> None:
        self._presence, self._store = presence, presence.store
        self._missing = [rank for rank in range(presence.world_size) if rank != presence.rank]
        self._heard = {rank: _Heard(beats=0, changed_at=now) for rank in self._missing}
        self._next_look, self._next_word = now, now + presence.deadline_seconds

    def look(self, now: float) -> bool:
        """Check the other ranks once per period. Returns False, because the wait continues."""
        if now < self._next_look:
            return False
        self._next_look = now + self._presence.period_seconds
        self._missing = [rank for rank in self._missing if not self._store.check([f"here {rank}"])]
        for rank in self._missing:
            beats = self._store.add(f"beat {rank}", 0)
            if beats != self._heard[rank].beats:
                self._heard[rank] = _Heard(beats=beats, changed_at=now)
            elif now - self._heard[rank].changed_at > self._presence.deadline_seconds:
                raise LostError(self._why_lost(rank))
        if self._missing and now >= self._next_word:
            self._next_word = now + self._presence.deadline_seconds
            others = ", ".join(map(str, self._missing))
            log.warning("rank %d waits for rank %s, still loading task or data", self._presence.rank, others)
        return False

    def _why_lost(self, rank: int) -> str:
        within = f"within the deadline of {self._presence.deadline_seconds:g} s (--group-seconds)"
        which = f"rank {rank} of {self._presence.world_size}"
        if self._heard[rank].beats == 0:
            return f"{which} has not started {within}. Start all ranks, and read this rank's last output"
        return (
            f"{which} sent no heartbeat {within} while it loaded its task or data. Read its last output, or set "
            "a longer deadline"
        )


_FAULT_OF_NCCL = "exception_dump"  # key of failed collectives in torch's ProcessGroupNCCL (torch 2.13)
_GROUPS = count()  # numbers of this process's groups, equal on all ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """A rank before it joins the others. `presence` is its heartbeat, None for a single rank."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    world_size: int = 1
    backend: Backend = "gloo"
    presence: Presence | None = None
    one_host: bool = True

    def join(self) -> Group:
        """Form the process group, if any, once all ranks have arrived. Raises LostError if a rank is lost."""
        presence = self.presence
        if presence is None:
            return Group(device=self.device)
        if self.backend == "nccl":
            set_nccl_interface(one_host=self.one_host)
        with classified():
            presence.wait_for_all()
            return form_group(
                presence.store,
                "group",
                self.rank,
                self.world_size,
                self.backend,
                timeout_seconds=presence.deadline_seconds,
                device=self.device,
                one_host=self.one_host,
            )

    def close(self) -> None:
        """Stop the heartbeat, so that the other ranks detect that this rank ends before joining."""
        if self.presence is not None:
            self.presence.close()


def place_on_this_machine(
    kind: DeviceKind, rank: int, world_size: int, *, store: Store, options: GroupOptions
) -> RankPlace:
    """Return a rank's place in a process group on this machine. Ranks share GPUs if there are too few."""
    devices = world_size if kind == "cpu" else torch.cuda.device_count()
    return RankPlace(
        device=device_of(kind, rank % devices),
        rank=rank,
        world_size=world_size,
        backend=options.backend_of(kind, ranks=world_size, devices=devices),
        presence=Presence(store, rank, world_size, options.seconds),
    )


def place_in_environment(
    kind: DeviceKind, options: GroupOptions | None = None, presence: Presence | None = None
) -> RankPlace:
    """Return the place in torchrun's RANK, WORLD_SIZE and LOCAL_RANK. Raises LostError if there is no store."""
    options = options or GroupOptions()
    local_rank, world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ["WORLD_SIZE"])
    if kind == "cuda" and options.backend == "gloo":
        local_rank %= torch.cuda.device_count()
    return RankPlace(
        device=device_of(kind, local_rank),
        rank=int(os.environ["RANK"]),
        world_size=world_size,
        backend=BACKENDS[kind] if options.backend == "auto" else options.backend,
        presence=presence or presence_in_environment(options.seconds),
        one_host=os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"],
    )


def presence_in_environment(deadline_seconds: float) -> Presence | None:
    """Start the heartbeat under torchrun, before slow work; None for a single rank.

    Raises LostError if no store answers, or if not all ranks have started.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size == 1:
        return None
    # torchrun keeps its store when it restarts ranks, so a restarted rank must not find keys of its earlier process.
    names = (os.environ.get(name, "0") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    prefix = "automl/" + "/".join([*names, str(next(_GROUPS))])
    timeout = timedelta(seconds=deadline_seconds)
    try:
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
        store.set_timeout(timeout)
        _forget_faults_of_earlier_starts(store)
        return Presence(PrefixStore(prefix, store), rank, world_size, deadline_seconds)
    except dist.DistError as error:
        raise LostError(_why_not_met(rank, world_size, deadline_seconds, error)) from error


def _forget_faults_of_earlier_starts(store: Store) -> None:
    """Delete NCCL's failure key from torchrun's store: it would end each later start after 8 minutes."""
    # torch looks for the key in the store below all prefixes. No rank has a group yet, which needs all heartbeats.
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    store.delete_key(_FAULT_OF_NCCL)


def _why_not_met(rank: int, world_size: int, deadline_seconds: float, error: Exception) -> str:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    said = " ".join(str(error).split())[:80]
    return (
        f"rank {rank} of {world_size} did not meet the others at {where} within {deadline_seconds:g} s "
        f"(--group-seconds): start all ranks, all with rank 0's MASTER_ADDR and a free MASTER_PORT ({said})"
    )
