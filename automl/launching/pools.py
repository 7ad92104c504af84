"""The pool on which a prepared study trains."""

from __future__ import annotations

from automl.launching.preparing import Prepared
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
        grows: Whether devices that join the cluster become new slots if the spec leaves the number of slots open.
    """
    resources = prepared.spec.resources
    joins = resources.slots == "auto" and resources.ray_address is not None
    return RayPool(
        device=prepared.place.device,
        cpus_per_rank=resources.cpus_per_rank,
        backend=resources.backend,
        environment=handed_over(resources.environment, prefixes=environment_of(prepared.spec.checkpoints.folder)),
        address=resources.ray_address,
        temp_folder=resources.ray_temp_folder,
        grows=grows and joins,
        autoscale=resources.autoscale,
        group_timeout_seconds=prepared.spec.faults.group_seconds,
        ask_seconds=min(ASK_SECONDS, prepared.spec.faults.silence_seconds / ASKED_WITHIN_SILENCE),
    )
