"""Letting controllers that stand by know of the cluster of the one that drives: in the lease's row, and on the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from studies.gangs.shared_cluster import SharedCluster, remove_marker, write_marker
from studies.storage import lease as leases
from studies.storage.store import Store
from trainers.checkpoint_urls import is_url

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
        self._marked: SharedCluster | None = None
        self._marking: threading.Thread | None = None

    def look(self, lease: leases.Lease, folder: str) -> None:
        """Publish the cluster if there is one that is not published yet.

        Args:
            lease: Lease of the controller that drives.
            folder: Path or URL of the folder of the study's checkpoints, which is marked as the one that the cluster's
                ranks write to.

        Raises:
            DBAPIError: The store does not answer; the next look tries again.
        """
        cluster = self._shared()
        if cluster is None or cluster == self._published:
            return
        if not self._is_marked(folder, cluster):
            return
        leases.share_cluster(self._store, lease, cluster.address, cluster.token)
        self._published = cluster

    def end(self, folder: str) -> None:
        """Take the mark away; the lease's row forgets the cluster when it is released."""
        if self._published is not None:
            remove_marker(folder, self._published)

    def _is_marked(self, folder: str, cluster: SharedCluster) -> bool:
        """Mark the folder, beside the heartbeat where a store may take its time; returns whether it is marked."""
        if not is_url(folder):
            self._mark(folder, cluster)
        elif self._marked != cluster and (self._marking is None or not self._marking.is_alive()):
            self._marking = threading.Thread(target=self._mark, args=(folder, cluster), daemon=True)
            self._marking.start()
        return self._marked == cluster

    def _mark(self, folder: str, cluster: SharedCluster) -> None:
        try:
            write_marker(folder, cluster)
        except OSError as error:  # its disk may be full for a while
            if not self._warned:
                log.warning("%s: cannot be marked as shared (%s); nobody can join until it is", folder, error.strerror)
            self._warned = True
        else:
            self._marked = cluster
