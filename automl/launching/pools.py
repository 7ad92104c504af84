"""The pool on which a prepared study trains."""

from __future__ import annotations

from collections.abc import Callable

from automl.launching.preparing import Prepared
from studies.control.assembly import checkpoint_folder
from studies.gangs.lending import Lender
from studies.gangs.lent_node import Devices
from studies.gangs.on_ray import RayPool
from studies.gangs.progress_watch import ASK_SECONDS
from studies.gangs.rank_environment import handed_over
from trainers.checkpoint_urls import environment_of

ASKED_WITHIN_SILENCE = 4
"""Number of questions to a rank within the longest silence."""


def pool_of(prepared: Prepared, *, grows: bool = False) -> RayPool:
    """A pool of the device and on the cluster that the spec names; it is not opened yet.

    Args:
        prepared: A study that is ready to train.
        grows: Whether devices that join the cluster become new slots if the spec leaves the number of slots open, or
            if other controllers lend theirs.
    """
    resources = prepared.spec.resources
    share_on = prepared.share_on if grows else None
    joins = resources.slots == "auto" and resources.ray_address is not None
    return RayPool(
        device=prepared.place.device,
        cpus_per_rank=resources.cpus_per_rank,
        backend=resources.backend,
        environment=handed_over(resources.environment, prefixes=environment_of(prepared.spec.checkpoints.folder)),
        address=resources.ray_address,
        temp_folder=resources.ray_temp_folder,
        grows=grows and (joins or share_on is not None),
        autoscale=resources.autoscale,
        share_on=share_on,
        group_timeout_seconds=prepared.spec.faults.group_seconds,
        ask_seconds=min(ASK_SECONDS, prepared.spec.faults.silence_seconds / ASKED_WITHIN_SILENCE),
    )


def lender_of(prepared: Prepared, *, say: Callable[[str], None], warn: Callable[[str], None]) -> Lender | None:
    """What lends this machine's devices while another controller drives the study; None if they are not to be lent.

    Args:
        prepared: A study that is ready to train.
        say: Function that is called with a line when devices are lent.
        warn: Function that is called with a line when they cannot be.
    """
    if prepared.share_on is None:
        return None
    place, spec = prepared.place, prepared.spec
    devices = Devices(
        address=prepared.share_on,
        device=place.device,
        slots=place.slots,
        cpus_per_rank=spec.resources.cpus_per_rank,
    )
    return Lender(devices, checkpoint_folder(spec, prepared.base_folder), say=say, warn=warn)
