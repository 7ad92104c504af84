"""The program that waits until the nodes of an allocation have joined their Ray cluster.

    python -m automl.clusters.nodes_joined ADDRESS NODES

A study that begins before would count the slots of the nodes that are there.
"""

from __future__ import annotations

import sys

from studies.gangs.pool_protocol import PoolError
from studies.gangs.ray_cluster import wait_for_nodes

SECONDS = 600.0
"""Longest time; Python and Ray are slow to load from a file system that many nodes share."""


def main() -> None:
    """Wait, and end with exit code 1 and one line if the nodes do not come."""
    address, nodes = sys.argv[1:]
    try:
        wait_for_nodes(address, int(nodes), SECONDS)
    except PoolError as error:
        sys.exit(f"automl: {error}")


if __name__ == "__main__":
    main()
