"""Environment variables of the user's shell that ranks on other machines need, such as settings of NCCL."""

import os
from collections.abc import Collection, Mapping

PREFIXES = ("NCCL_", "GLOO_", "HF_", "CUDA_")  # prefixes of variables that are always passed on
OF_THE_NODE = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "AWS_EXECUTION_ENV"})
"""Variables that are valid on one machine only; Ray sets the first for each process."""
ROLES_OF_THE_NODE = "AWS_CONTAINER_"  # prefix of variables that give a container its role; useless on another machine


def handed_over(
    names: Collection[str], environment: Mapping[str, str] = os.environ, *, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the variables for ranks on other machines, including those in `names` that are set."""
    return {
        name: value
        for name, value in environment.items()
        if name in names or (name.startswith(PREFIXES + prefixes) and not _is_of_the_node(name))
    }


def _is_of_the_node(name: str) -> bool:
    return name in OF_THE_NODE or name.startswith(ROLES_OF_THE_NODE)
