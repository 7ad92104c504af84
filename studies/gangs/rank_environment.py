"""Environment variables of the user's shell that ranks on other machines have to see as well.

The processes of a cluster of our own inherit them all. Those of other machines have the environment in which their node
was started, and without a word of NCCL's settings they would not find each other, or look for models in other folders.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

PREFIXES = ("NCCL_", "GLOO_", "HF_", "CUDA_")
"""Beginnings of the names of variables that are handed over without being named."""
OF_THE_NODE = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "AWS_EXECUTION_ENV"})
"""Variables that say what is on one machine; Ray sets the first for each process."""
ROLES_OF_THE_NODE = "AWS_CONTAINER_"
"""Beginning of the names of variables by which a container gets its role: another machine cannot use them."""


def handed_over(
    names: Collection[str], environment: Mapping[str, str] = os.environ, *, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the variables that ranks on other machines get.

    Args:
        names: Names of further variables; those that are not set are left out.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in names or (name.startswith(PREFIXES + prefixes) and not _is_of_the_node(name))
    }


def _is_of_the_node(name: str) -> bool:
    return name in OF_THE_NODE or name.startswith(ROLES_OF_THE_NODE)
