"""What the operator of a service allows: whose code runs, which data are read, where outputs go, what a slot costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.reading import expanded
from search_spaces.wording import found, listed
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.commands.command import COMMAND
from trainers.contract.task_loading import built_in_tasks, path_options

_FIXED_RESOURCES = ("ray_address", "ray_temp_folder", "environment", "autoscale")
CHANGEABLE = ("budget", "faults")
"""Sections of the spec that may be changed when a study is resumed; where and at which price it runs is fixed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the operator allows.

    Attributes:
        code_folders: Folders whose tasks, samplers and pruners may run, by the name under which a submission asks for
            them.
        packages: Installed packages whose tasks, samplers and pruners may run.
        uploads: Folder of uploaded data, one folder below it for each project; None takes no uploads.
        artifacts: Folder or URL of checkpoints and reports, one folder below it for each project.
        mlflow: Tracking URI of MLflow, or "off".
        usd_per_slot_hour: Price of a slot in dollars an hour; None takes the device's list price.
        mlflow_server: URL of an MLflow server that admins reach under `/mlflow/`; empty without one.
    """

    code_folders: Mapping[str, Path]
    packages: frozenset[str] = frozenset()
    commands: bool = False
    data_folders: tuple[Path, ...] = ()
    uploads: Path | None = None
    upload_bytes: int = 2**30
    artifacts: str = "artifacts"
    mlflow: str = "off"
    usd_per_slot_hour: float | None = None
    mlflow_server: str = ""

    def base_folder(self, code: str | None, project: str) -> Path:
        """Return the folder in which the paths and the code of a submission start.

        Args:
            code: Name of a code folder; None takes the project's uploads.

        Raises:
            SpecError: There is no such folder.
        """
        if code is None:
            return self.uploads_of(project) if self.uploads is not None else Path(self.artifacts).absolute()
        if code not in self.code_folders:
            raise SpecError("code", (), found(code, listed(self.code_folders) or "none: the operator has named none"))
        return self.code_folders[code].absolute()

    def uploads_of(self, project: str) -> Path:
        """Return the folder of a project's uploads.

        Raises:
            SpecError: The operator takes no uploads.
        """
        if self.uploads is None:
            raise SpecError("upload", (), "found data, allowed: none, since this service takes no uploads")
        return (self.uploads / project).absolute()

    def admit(self, spec: StudySpec, *, source: str, base_folder: Path, project: str) -> StudySpec:
        """Return a spec with what the operator decides filled in.

        Args:
            base_folder: Folder in which relative paths and code start.

        Raises:
            SpecError: It asks for code, data or resources that the operator does not allow; the message names the key.
        """
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
        """Refuse code that is neither in an allowed package nor in the folder that the submission has named."""
        top = name.partition(":")[0].partition(".")[0]
        is_named = any(base_folder == folder.absolute() for folder in self.code_folders.values())
        there = is_named and ((base_folder / f"{top}.py").is_file() or (base_folder / top).is_dir())
        if top in self.packages or there:
            return
        packages = listed(sorted(self.packages)) or "none"
        folders = listed(self.code_folders) or "none"
        allowed = f"built-in ones, and what the operator allows: packages ({packages}), code folders ({folders})"
        raise SpecError(source, path, found(name, allowed))

    def _check_data(self, spec: StudySpec, source: str, base_folder: Path, project: str) -> None:
        """Refuse paths of built-in tasks outside the allowed folders; links are followed first."""
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
                allowed = listed(map(str, roots)) or "nothing: the operator has named no folders of data"
                raise SpecError(source, ("task_options", name), found(value, f"a path below {allowed}"))


def _check_resources(spec: StudySpec, source: str) -> None:
    plain = type(spec.resources)()
    for name in _FIXED_RESOURCES:
        value = getattr(spec.resources, name)
        if value != getattr(plain, name):
            raise SpecError(source, ("resources", name), found(value, "nothing: the workers of the service decide"))
