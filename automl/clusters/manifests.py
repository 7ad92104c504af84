"""Writes folders for Kubernetes and compose: manifests and an image, for a study, a training or the service."""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from automl.clusters.allocation_options import cpus_of_node
from automl.exporting.atomic_outputs import new_folder
from automl.given_parameters import read_params
from automl.images.image_folder import pinned
from automl.text_templates import cluster_name, rendered
from search_spaces.messages import UserError
from studies.gangs.ray_cluster import SETTINGS
from studies.spec.study_spec import StudySpec
from trainers.checkpoints.locations import is_url
from trainers.commands.command import as_text

Target = Literal["kuberay", "pytorchjob", "compose", "kustomize"]
_MLFLOW_PORT = 5000
_NODE_PORT = 6380
_POSTGRES = "17"
_GIB_PER_CPU = 4
_PROGRAM = ("python", "-m", "automl.clusters.ray_job")
"""Command of a RayJob, without shell syntax, because KubeRay copies it into a script."""
FOLDER = "/home/automl/study"  # folder of spec and code in the image, where all commands run
CHECKPOINTS = "artifacts"  # folder below it, where a volume is mounted
MLFLOW_FOLDER = "/home/automl/mlflow"
UPLOADS_FOLDER = "/home/automl/uploads"
PORT = 8765
TOKENS = "/run/secrets/automl/tokens"
USER_ID = 1000
_PACKAGES = ("automl-search", "fastapi", "prometheus-client", "psycopg", "pydantic-settings", "uvicorn")
_WITH_EXTRAS = {"psycopg": "psycopg[binary]", "ray": "ray[default]"}
"""Extras added to pinned lines, since they may be missing here. KubeRay's jobs need Ray's dashboard."""
_NO_CODE = frozenset({"__pycache__", "site-packages", "node_modules", "venv", "tests"})
_MOST_FILES = 200  # most Python files of a study's code
_TEMPLATES = Path(__file__).with_name("image_files")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of a manifest. Defaults: 4 CPUs per GPU (all for compose), an image named after the study."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int | None = None
    image: str | None = None

    def values(self, study: str) -> dict[str, Any]:
        """Return values for the manifests' templates."""
        name = cluster_name(study, "study")
        image = self.image or f"{name}:latest"
        cpus = self.cpus_per_node or cpus_of_node(self.gpus_per_node)
        image_name, tag = _parts(image)
        return {
            "name": name,
            "study": study,
            "image": image,
            "image_name": image_name,
            "image_tag": tag,
            "dockerfile": "Dockerfile.gpu" if self.gpus_per_node else "Dockerfile",
            "nodes": self.nodes,
            "gpus": self.gpus_per_node,
            "cpus": cpus,
            "memory": f"{_GIB_PER_CPU * cpus}Gi",
        }


def write_manifests(
    target: Target,
    spec: StudySpec,
    *,
    file: Path,
    machines: Machines,
    out: Path,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write manifests, Dockerfiles and a README with the commands to `out`, a new or empty folder.

    Raises UserError for an unfit spec, or too many Python files. `training` is for `arguments_of_training`.
    """
    values = {**values_of_image(), **machines.values(spec.study), "task": spec.task}
    match target:
        case "kuberay":
            values |= _values_of_kuberay(spec)
        case "pytorchjob":
            ranks = machines.gpus_per_node or 1
            arguments = arguments_of_training(spec, machines.nodes, ranks, **(training or {}))
            values |= {"ranks": ranks, "arguments": arguments}
        case "compose":
            if machines.nodes > 1:
                raise UserError(
                    f"--nodes is {machines.nodes}, but compose starts one worker on one machine. Leave --nodes out"
                )
            values |= {"mlflow_port": _MLFLOW_PORT, "postgres": _POSTGRES, "worker_slots": machines.cpus_per_node}
        case "kustomize":
            pass
    with new_folder(out) as folder:
        write_image(folder, spec, file)
        write_texts(folder, rendered(Path(__file__).with_name(f"{target}_files"), values))


def arguments_of_training(
    spec: StudySpec, nodes: int, ranks: int, *, given: Sequence[str] = (), epochs: int | None = None
) -> list[str]:
    """Return the arguments of torchrun in each pod. Kubernetes replaces RANK and MASTER_*.

    `given` has parameters as NAME=VALUE. Raises UserError for a command, or an unreadable parameter.
    """
    if spec.is_command:
        raise UserError("task: only a study can run a shell command. Name a task or a training function")
    read_params(given)
    options = [f"--option={name}={as_text(value)}" for name, value in spec.task_options.items()]
    return [
        f"--nnodes={nodes}",
        f"--nproc-per-node={ranks}",
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
        "-m",
        "automl",
        "train",
        spec.task,
        f"--epochs={epochs or spec.training.epochs}",
        *options,
        *(f"--param={one}" for one in given),
        f"--checkpoints={CHECKPOINTS}",
        "--resume",
    ]


def _values_of_kuberay(spec: StudySpec) -> dict[str, Any]:
    if spec.resources.autoscale:
        raise UserError("resources.autoscale is true, but this RayJob has a fixed number of workers. Set it to false")
    overrides = ["resources.ray_address=auto"]
    if not is_url(spec.checkpoints.folder):
        overrides.append(f"checkpoints.folder={CHECKPOINTS}")
    if not spec.mlflow.startswith(("http:", "https:", "postgresql")):
        overrides.append("mlflow=off")  # a file in a pod is lost with the pod
    entrypoint = " ".join([*_PROGRAM, "launch", f"{spec.study}.yaml", *(f"--set {one}" for one in overrides)])
    return {
        "entrypoint": entrypoint,
        "ray_version": metadata.version("ray"),
        "ray_settings": tuple(SETTINGS.items()),
        "node_port": _NODE_PORT,
    }


def _parts(image: str) -> tuple[str, str]:
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def values_of_image() -> dict[str, Any]:
    """Return values for the image's templates."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "user_id": USER_ID,
        "folder": FOLDER,
        "checkpoints": CHECKPOINTS,
        "mlflow_folder": MLFLOW_FOLDER,
        "uploads": UPLOADS_FOLDER,
        "port": PORT,
        "tokens": TOKENS,
        "tokens_folder": str(Path(TOKENS).parent),
    }


def write_image(folder: Path, spec: StudySpec, file: Path) -> None:
    """Write Dockerfiles and the files they copy. Raises ExportError (no package) or UserError (too many files)."""
    write_texts(folder, rendered(_TEMPLATES, values_of_image()))
    lines = [_with_extra(line) for line in pinned(_PACKAGES)]
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    study = folder / "study"
    study.mkdir()
    shutil.copyfile(file, study / f"{spec.study}.yaml")
    if _has_own_code(spec):
        for code in code_beside(file):
            place = study / code.relative_to(file.absolute().parent)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(code, place)


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name into a folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _has_own_code(spec: StudySpec) -> bool:
    names = (spec.task, spec.search.sampler, spec.search.pruner.name)
    return spec.is_command or spec.search.advisor is not None or any(":" in name for name in names)


def code_beside(file: Path) -> list[Path]:
    """Return the Python files in a spec's folder and visible subfolders. Raises UserError above `_MOST_FILES`."""
    base = file.absolute().parent
    found = []
    for code in sorted(base.rglob("*.py")):
        parts = code.relative_to(base).parts
        if not any(part in _NO_CODE or part.startswith(".") for part in parts):
            found.append(code)
    if len(found) > _MOST_FILES:
        raise UserError(
            f"{base}: the image would hold {len(found)} Python files, more than {_MOST_FILES}. Put {file.name} and "
            "its code into a folder without other code"
        )
    return found


def _with_extra(line: str) -> str:
    name, _, version = line.partition("==")
    return f"{_WITH_EXTRAS.get(name, name)}=={version}"
