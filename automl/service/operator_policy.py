"""The operator's policy: allowed code and data, output folders, and the price of a slot."""

import ast
import importlib.util
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.spec_reading import expanded
from search_spaces.messages import found, listed
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.contract.task_loading import built_in_tasks, path_options

_FIXED_RESOURCES = ("ray_address", "ray_temp_folder", "environment", "autoscale")
CHANGEABLE = ("budget", "faults")  # sections of the spec that `resume` may change


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The operator's rules for submitted studies."""

    code_folders: Mapping[str, Path]  # folders with allowed tasks, samplers and pruners, by their names in submissions
    packages: frozenset[str] = frozenset()
    commands: bool = False
    advisors: frozenset[tuple[str, ...]] = frozenset()  # whole commands that may run beside the controller
    data_folders: tuple[Path, ...] = ()
    uploads: Path | None = None  # folder of uploaded data, with a folder for each project; None refuses uploads
    upload_bytes: int = 2**30
    artifacts: str = "artifacts"  # folder or URL of checkpoints and reports, with a folder for each project
    mlflow: str = "off"  # tracking URI of MLflow, or "off"
    usd_per_slot_hour: float | None = None  # price of a slot in dollars per hour; None takes the device's list price
    mlflow_server: str = ""  # URL of an MLflow server that admins reach under `/mlflow/`; empty without a server

    def base_folder(self, code: str | None, project: str) -> Path:
        """Return the folder for relative paths: a code folder, or (None) the uploads, else the artifacts.

        Raises SpecError for an unknown code folder.
        """
        if code is None:
            return self.uploads_of(project) if self.uploads is not None else Path(self.artifacts).absolute()
        if code not in self.code_folders:
            raise SpecError("code", (), found(code, listed(self.code_folders) or "none: the operator has named none"))
        return self.code_folders[code].absolute()

    def uploads_of(self, project: str) -> Path:
        """Return the folder of a project's uploads. Raises SpecError if uploads are not allowed."""
        if self.uploads is None:
            raise SpecError(
                "upload", (), "this service accepts no uploads. Ask its operator to start it with --uploads"
            )
        return (self.uploads / project).absolute()

    def admit(self, spec: StudySpec, *, source: str, base_folder: Path, project: str) -> StudySpec:
        """Return a spec with the operator's settings. Raises SpecError for a forbidden value."""
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
        if spec.is_command:
            if not self.commands:
                allowed = "a built-in task or allowed code, since the operator allows no commands"
                raise SpecError(source, ("task",), found("a command", allowed))
        elif spec.task not in built_in_tasks():
            self._check_module(spec.task, source, ("task",), base_folder)
        for key, name in (("sampler", spec.search.sampler), ("pruner", spec.search.pruner.name)):
            if ":" in name:
                self._check_module(name, source, ("search", key), base_folder)

        advisor = spec.search.advisor
        if advisor is not None and not (advisor.command in self.advisors and self._is_named(base_folder)):
            commands = listed(sorted(map(shlex.join, self.advisors))) or "none"
            allowed = f"with code of the operator, one of the operator's advisors ({commands})"
            raise SpecError(source, ("search", "advisor"), found(shlex.join(advisor.command), allowed))

    def _is_named(self, base_folder: Path) -> bool:
        return any(base_folder == folder.absolute() for folder in self.code_folders.values())

    def _check_module(self, name: str, source: str, path: tuple[str, ...], base_folder: Path) -> None:
        """Refuse code outside the code folder, and names that a module only imports (`train:os.system`)."""
        module, _, defined = name.partition(":")
        folders = [base_folder] if self._is_named(base_folder) else []
        top = module.partition(".")[0]
        if top in self.packages and (package := importlib.util.find_spec(top)) is not None:
            folders += [Path(place).parent for place in package.submodule_search_locations or (package.origin or "",)]
        file = next((file for folder in folders if (file := _file_of(module, folder)) is not None), None)
        if file is not None:
            if defined not in names_defined_in(file):
                raise SpecError(source, path, found(name, f"a class or function that {file.name} itself defines"))
            return
        packages = listed(sorted(self.packages)) or "none"
        named = listed(self.code_folders) or "none"
        allowed = f"built-in names, and code of the operator: packages ({packages}), code folders ({named})"
        raise SpecError(source, path, found(name, allowed))

    def _check_data(self, spec: StudySpec, source: str, base_folder: Path, project: str) -> None:
        """Refuse built-in tasks' paths outside the allowed folders, after following links."""
        if spec.is_command or spec.task not in built_in_tasks():
            return
        always, if_there = path_options(spec.task)
        roots = [folder.resolve() for folder in (*self.data_folders, *self.code_folders.values())]
        if self.uploads is not None:
            roots.append(self.uploads_of(project).resolve())
        for name, value in spec.task_options.items():
            if name not in (*always, *if_there) or not isinstance(value, str) or not value:
                continue
            given = expanded(value, source, name)
            # A name without a file below the base folder may be a path below the folder of this process or of a worker.
            # As a task opens it: `..` is dropped as text before links are followed.
            places = [Path(os.path.abspath(folder / given)).resolve() for folder in (base_folder, Path.cwd())]  # noqa: PTH100
            is_path = name in always or given.is_absolute() or ".." in given.parts
            places = places[:1] if is_path else [one for one in places if os.path.exists(one)]  # noqa: PTH110 - any text
            if not all(any(one.is_relative_to(root) for root in roots) for one in places):
                allowed = listed(map(str, roots)) or "no path: the operator has named no folders of data"
                raise SpecError(source, ("task_options", name), found(value, f"a path below {allowed}"))


def names_defined_in(file: Path) -> frozenset[str]:
    """Return the names of a file's classes and functions, without running the file."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(one.name for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef))


def _file_of(module: str, folder: Path) -> Path | None:
    place = folder.joinpath(*module.split("."))
    return next((one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()), None)


def _check_resources(spec: StudySpec, source: str) -> None:
    plain = type(spec.resources)()
    for name in _FIXED_RESOURCES:
        value = getattr(spec.resources, name)
        if value != getattr(plain, name):
            raise SpecError(source, ("resources", name), found(value, "no value: the workers of the service decide"))
