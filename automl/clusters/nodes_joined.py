"""Waits until NODES nodes have joined the Ray cluster at ADDRESS: an earlier start would count too few devices."""

import sys

from studies.gangs.pool_protocol import PoolError
from studies.gangs.ray_cluster import wait_for_nodes

SECONDS = 600.0  # most seconds to wait; Python and Ray load slowly from a shared file system


def main() -> None:
    """Wait for the nodes. Exit with code 1 and a message if nodes are missing."""
    address, nodes = sys.argv[1:]
    try:
        wait_for_nodes(address, int(nodes), SECONDS)
    except PoolError as error:
        sys.exit(f"automl: {error}")


if __name__ == "__main__":
    main()
