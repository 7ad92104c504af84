"""The image of a study, its service and its workers: Dockerfiles, the files they copy, and paths in the image."""

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automl.images.image_folder import pinned
from automl.text_templates import rendered
from search_spaces.user_errors import UserError
from studies.spec.study_spec import StudySpec
from trainers.commands.command import COMMAND

FOLDER = "/home/automl/study"  # folder of the spec and its code in the image, and working directory of all commands
CHECKPOINTS = "artifacts"  # folder in it where a volume is mounted
MLFLOW_FOLDER = "/home/automl/mlflow"
UPLOADS_FOLDER = "/home/automl/uploads"
PORT = 8765
TOKENS = "/run/secrets/automl/tokens"
USER_ID = 1000
_TEMPLATES = Path(__file__).with_name("image_files")
_PACKAGES = ("automl-search", "fastapi", "prometheus-client", "psycopg", "pydantic-settings", "uvicorn")
_WITH_EXTRAS = {"psycopg": "psycopg[binary]", "ray": "ray[default]"}
"""Extras that may be missing here, and so have no pinned version. KubeRay's jobs need Ray's dashboard."""
_NO_CODE = frozenset({"__pycache__", "site-packages", "node_modules", "venv", "tests"})
_MOST_FILES = 200  # most Python files that can be the code of a study


def values_of_image() -> dict[str, Any]:
    """Return the image's values for the templates."""
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
    """Write Dockerfiles and the files they copy. ExportError if a package is missing, UserError for too many files."""
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
    """Write texts to files of a folder, by file name."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _has_own_code(spec: StudySpec) -> bool:
    names = (spec.task, spec.search.sampler, spec.search.pruner.name)
    return spec.task == COMMAND or any(":" in name for name in names)


def code_beside(file: Path) -> list[Path]:
    """Return the Python files beside and below a spec, without hidden folders. UserError above `_MOST_FILES`."""
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
