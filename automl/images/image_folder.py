"""Writes a folder with a package, a Dockerfile, and files for a Hugging Face Space and Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from automl.exporting.atomic_outputs import ExportError, new_folder
from automl.exporting.formats import write_package
from automl.text_templates import cluster_name, rendered
from search_spaces.messages import install_command

if TYPE_CHECKING:
    from torch.export import ExportedProgram

SERVER_PACKAGES = ("fastapi", "gunicorn", "prometheus-client", "pydantic-settings", "uvicorn", "uvicorn-worker")
_MODEL = "model"
_PORT = 7860  # port of a Hugging Face Space
_USER_ID = 1000
_MIB_WITHOUT_MODEL = 768  # MiB of a worker for torch, server and batches, without the model
_OF_ACCELERATORS = ("nvidia-", "cuda-", "triton", "intel-", "pytorch-triton")
"""Prefixes of torch's dependencies for GPUs."""


def write_image_folder(programs: Sequence[ExportedProgram], manifest: Mapping[str, Any], out: Path) -> None:
    """Write a folder for `docker build` of a model server. Raises ExportError for a missing package."""
    needed = pinned((*(name for name in manifest["environment"] if name != "python"), *SERVER_PACKAGES))
    with new_folder(out) as folder:
        write_package(programs, manifest, folder / _MODEL)
        size = sum(file.stat().st_size for file in (folder / _MODEL).rglob("*") if file.is_file())
        for name, text in texts(manifest, size).items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in needed), encoding="utf-8")


def texts(manifest: Mapping[str, Any], model_bytes: int) -> dict[str, str]:
    """Return the files beside the package, by name. `model_bytes` is the model's size on disk."""
    # Weights are in memory twice: as read from the file, and as torch arranges them.
    mebibytes = _MIB_WITHOUT_MODEL + 2 * model_bytes // 2**20
    members = manifest.get("members")
    values = {
        "model": _MODEL,
        "port": _PORT,
        "user_id": _USER_ID,
        "name": cluster_name(str(manifest["study"]), "model"),
        "study": manifest["study"],
        "what": f"an ensemble of {len(members)} models" if members else f"trial {manifest['trial']}",
        "licence": manifest["licence"],
        "python": ".".join(manifest["environment"]["python"].split(".")[:2]),
        "mebibytes": mebibytes,
    }
    return rendered(Path(__file__).with_name("files"), values)


def pinned(packages: tuple[str, ...]) -> list[str]:
    """Return lines such as `fastapi==0.141.1` for packages and their dependencies, as installed here.

    Leaves out torch's GPU packages and a version's build (+cpu). Raises ExportError if a package is missing.
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
            needs = map(Requirement, found.requires or ())
            plain = [one for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
            waiting += [canonicalize_name(one.name) for one in plain]
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _found(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
