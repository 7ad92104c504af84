"""Letting controllers that stand by know of the cluster of the one that drives: in the lease's row, and on the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from studies.gangs.shared_cluster import SharedCluster, remove_marker, write_marker
from studies.storage import lease as leases
from studies.storage.store import Store

log = logging.getLogger(__name__)


class Sharing:
    """Publishes the cluster of a pool once it is there.

    Args:
        store: Store that holds the lease.
        shared: Function that returns the cluster that others may join, None as long as there is none.
    """

    def __init__(self, store: Store, shared: Callable[[], SharedCluster | None]) -> None:
        self._store, self._shared = store, shared
        self._published: SharedCluster | None = None
        self._warned = False

    def look(self, lease: leases.Lease, folder: Path) -> None:
        """Publish the cluster if there is one that is not published yet.

        Args:
            lease: Lease of the controller that drives.
            folder: Folder of the study's checkpoints, which is marked as the one that the cluster's ranks write to.

        Raises:
            DBAPIError: The store does not answer; the next look tries again.
        """
        cluster = self._shared()
        if cluster is None or cluster == self._published:
            return
        try:
            write_marker(folder, cluster)
        except OSError as error:  # its disk may be full for a while
            if not self._warned:
                log.warning("%s: cannot be marked as shared (%s); nobody can join until it is", folder, error.strerror)
            self._warned = True
            return
        leases.share_cluster(self._store, lease, cluster.address, cluster.token)
        self._published = cluster

    def end(self, folder: Path) -> None:
        """Take the mark away; the lease's row forgets the cluster when it is released."""
        if self._published is not None:
            remove_marker(folder, self._published)
