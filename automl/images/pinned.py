"""Pinned versions of packages and their dependencies, for a requirements file."""

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from automl.exporting.export_errors import ExportError
from search_spaces.wording import install_command

_OF_ACCELERATORS = ("nvidia-", "cuda-", "triton", "intel-", "pytorch-triton")
"""Prefixes of torch's dependencies for GPUs, which its build for CPUs does not need."""


def pinned(packages: tuple[str, ...]) -> list[str]:
    """Return lines such as `fastapi==0.141.1` for packages and their dependencies, in the versions installed here.

    Leaves out torch's GPU packages and the build of a version (+cpu). ExportError if a package is missing.
    """
    for name in packages:
        if _found(name) is None:
            raise ExportError(f"--docker: the package {name} is missing. Install it: {install_command('serve')}")
    waiting, versions = [canonicalize_name(name) for name in packages], dict[str, str]()
    while waiting:
        name = waiting.pop()
        found = None if name in versions or name.startswith(_OF_ACCELERATORS) else _found(name)
        if found is not None:  # else it is listed already, or needed only on another platform
            versions[name] = found.version.partition("+")[0]
            waiting += _needed_by(found)
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _needed_by(package: metadata.Distribution) -> list[NormalizedName]:
    needs = map(Requirement, package.requires or ())
    return [canonicalize_name(one.name) for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]


def _found(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
