"""The operator's policy: allowed code and data, places of outputs, and the price of a slot."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.spec_reading import expanded
from search_spaces.wording import found, listed
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.commands.command import COMMAND
from trainers.contract.task_loading import built_in_tasks, path_options

_FIXED_RESOURCES = ("ray_address", "ray_temp_folder", "environment", "autoscale")
CHANGEABLE = ("budget", "faults")
"""Sections of the spec that `resume` may change. Place and price of the run are fixed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Rules of the operator."""

    code_folders: Mapping[str, Path]  # folders with allowed tasks, samplers and pruners, by their names in submissions
    packages: frozenset[str] = frozenset()
    commands: bool = False
    data_folders: tuple[Path, ...] = ()
    uploads: Path | None = None  # folder of uploaded data, with a folder for each project; None refuses uploads
    upload_bytes: int = 2**30
    artifacts: str = "artifacts"  # folder or URL of checkpoints and reports, with a folder for each project
    mlflow: str = "off"  # tracking URI of MLflow, or "off"
    usd_per_slot_hour: float | None = None  # price of a slot in dollars per hour; None takes the device's list price
    mlflow_server: str = ""  # URL of an MLflow server that admins reach under `/mlflow/`; empty without a server

    def base_folder(self, code: str | None, project: str) -> Path:
        """Return the base folder of a submission; `code` None takes uploads. SpecError if it is missing."""
        if code is None:
            return self.uploads_of(project) if self.uploads is not None else Path(self.artifacts).absolute()
        if code not in self.code_folders:
            raise SpecError("code", (), found(code, listed(self.code_folders) or "none: the operator has named none"))
        return self.code_folders[code].absolute()

    def uploads_of(self, project: str) -> Path:
        """Return the folder of a project's uploads. SpecError if the operator allows no uploads."""
        if self.uploads is None:
            raise SpecError("upload", (), "this service takes no uploads (the operator may set --uploads)")
        return (self.uploads / project).absolute()

    def admit(self, spec: StudySpec, *, source: str, base_folder: Path, project: str) -> StudySpec:
        """Return a spec with the operator's settings, paths from `base_folder`. SpecError names a forbidden key."""
        self._check_code(spec, source, base_folder)
        self._check_data(spec, source, base_folder, project)
        _check_resources(spec, source)
        for name in spec.search.from_studies:
            if "/" in name or "#" in name or ":" in name:
                raise SpecError(source, ("search", "from_studies"), found(name, "names of studies of this service"))
        resources = spec.resources.model_copy(update={"price_per_slot_hour": self._price()})
        folder = self.artifacts if "://" in self.artifacts else str(Path(self.artifacts).absolute())
        checkpoints = spec.checkpoints.model_copy(update={"folder": f"{folder.rstrip('/')}/{project}"})
        update = {"resources": resources, "checkpoints": checkpoints, "mlflow": self.mlflow}
        return spec.model_copy(update=update)

    def _price(self) -> Any:
        return "auto" if self.usd_per_slot_hour is None else self.usd_per_slot_hour

    def _check_code(self, spec: StudySpec, source: str, base_folder: Path) -> None:
        if spec.task == COMMAND:
            if not self.commands:
                allowed = "a built-in task or allowed code, since the operator allows no commands"
                raise SpecError(source, ("task",), found("a command", allowed))
        elif spec.task not in built_in_tasks():
            self._check_module(spec.task, source, ("task",), base_folder)
        for key, name in (("sampler", spec.search.sampler), ("pruner", spec.search.pruner.name)):
            if ":" in name:
                self._check_module(name, source, ("search", key), base_folder)

    def _check_module(self, name: str, source: str, path: tuple[str, ...], base_folder: Path) -> None:
        top = name.partition(":")[0].partition(".")[0]
        is_named = any(base_folder == folder.absolute() for folder in self.code_folders.values())
        there = is_named and ((base_folder / f"{top}.py").is_file() or (base_folder / top).is_dir())
        if top in self.packages or there:
            return
        packages = listed(sorted(self.packages)) or "none"
        folders = listed(self.code_folders) or "none"
        allowed = f"built-in names, and code of the operator: packages ({packages}), code folders ({folders})"
        raise SpecError(source, path, found(name, allowed))

    def _check_data(self, spec: StudySpec, source: str, base_folder: Path, project: str) -> None:
        """Refuse paths of built-in tasks outside the allowed folders, after following links."""
        if spec.task == COMMAND or spec.task not in built_in_tasks():
            return
        always, if_there = path_options(spec.task)
        roots = [folder.resolve() for folder in (*self.data_folders, *self.code_folders.values())]
        if self.uploads is not None:
            roots.append(self.uploads_of(project).resolve())
        for name, value in spec.task_options.items():
            if name not in (*always, *if_there) or not isinstance(value, str) or not value:
                continue
            path = (base_folder / expanded(value, source, name)).resolve()
            is_inside = any(path == root or root in path.parents for root in roots)
            if not is_inside and (name in always or os.path.exists(path)):  # noqa: PTH110 - it takes any text
                allowed = listed(map(str, roots)) or "no path: the operator has named no folders of data"
                raise SpecError(source, ("task_options", name), found(value, f"a path below {allowed}"))


def _check_resources(spec: StudySpec, source: str) -> None:
    plain = type(spec.resources)()
    for name in _FIXED_RESOURCES:
        value = getattr(spec.resources, name)
        if value != getattr(plain, name):
            raise SpecError(source, ("resources", name), found(value, "no value: the workers of the service decide"))
