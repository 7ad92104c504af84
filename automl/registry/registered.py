"""Reads and writes models, packages and aliases in MLflow's registry.

The alias `champion` names the version in use, `challenger` the newest version that was not better. `models:/NAME@ALIAS`
and `models:/NAME/VERSION` name versions, as in MLflow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.atomic_outputs import ExportError
from automl.standalone.provenance import digest_of, remember
from search_spaces.untrusted_text import redact, redact_deep
from studies.storage.views.mlflow_connect import (
    check_database,
    experiment_id,
    in_one_line,
    open_client,
    sqlite_file,
    tracking_uri,
)
from studies.storage.views.mlflow_runs import (
    BY_PROMOTION,
    BY_TAG,
    create,
    every,
    param_values,
    points,
    set_status,
    write,
)
from studies.storage.views.mlflow_study import SPEC_FILE, datasets
from studies.storage.views.view_rows import ViewError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

CHAMPION, CHALLENGER = "champion", "challenger"
COMPARED_WITH = "automl.compared_with"  # tag of a version: number of the champion at its promotion
PROGRAMS_TAG = "automl.programs_sha256"
"""Tag of a version: digests of its program files. Users who write the registry are trusted to run code."""
DEFAULT_URI = "sqlite:///mlflow.db"
_SCHEME = "models:/"
_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w-]+)|/(?P<version>\d+))")
_NO_SUCH = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"})
"""MLflow's error codes for a missing model, version or alias."""
_MODEL = "model"  # artifact folder of the model in a run, and of the package in an MLflow model


def _only(model: str) -> str | None:
    """Return MLflow's filter for a name, or None for quotes, which the filter cannot escape."""
    return None if set(model) & set("'\"\\") else f"name='{model}'"


@contextmanager
def local_model(model: str, mlflow: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield a local, perhaps temporary, path of a model, and its version. Raises ExportError if it is missing."""
    if not model.startswith(_SCHEME):
        yield Path(model), Path(model).name
        return
    registry = Registry(mlflow, makes=False)
    version = registry.find(model)
    with TemporaryDirectory() as folder:
        yield registry.package(version, Path(folder)), version.label


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A version of a registered model. `source` is the URI of its files."""

    name: str
    number: int
    aliases: tuple[str, ...]
    tags: Mapping[str, str]
    source: str

    @property
    def label(self) -> str:
        """Name and version, such as `news/3`."""
        return f"{self.name}/{self.number}"


def registry_of(given: str | None, of_study: str | None, base_folder: str) -> Registry:
    """Return the registry at `given`, else at `of_study` (relative to `base_folder`), else the default.

    Raises ExportError if the URI is invalid, or does not answer.
    """
    if given is None and of_study is not None:
        return Registry(of_study, base_folder)
    return Registry(given)


class Registry:
    """MLflow's registry at a tracking URI. Raises ExportError if the URI is invalid, or does not answer.

    Args:
        given: The URI, by default MLFLOW_TRACKING_URI, else `DEFAULT_URI`.
        folder: Folder of a relative file, by default the current folder.
        makes: Whether to create a missing database file. If not, the registry is empty.
    """

    def __init__(self, given: str | None, folder: str | None = None, *, makes: bool = True) -> None:
        self.given = given or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
        try:
            self._uri = tracking_uri(self.given, folder or str(Path.cwd()))
            file = sqlite_file(self._uri)
            self._is_empty = not makes and file is not None and not file.exists()
            if self._is_empty:
                return
            check_database(self._uri)
            self._client: MlflowClient = open_client(self._uri)
        except ViewError as error:
            raise ExportError(f"--mlflow: {str(error).removeprefix('mlflow: ')}") from None
        except Exception as error:
            raise self._gone(error) from error

    @property
    def option(self) -> str:
        """Return the `--mlflow` option for this registry, empty for the default."""
        default = tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI, str(Path.cwd()))
        return "" if self._uri == default else f" --mlflow {shlex.quote(redact(self._uri))}"

    def versions(self, name: str | None = None) -> list[Version]:
        """Return the versions of a model or of all models, sorted. Raises ExportError if the registry fails."""
        if self._is_empty:
            return []
        try:
            names = [one.name for one in every(self._client.search_registered_models)] if name is None else [name]
            found = [
                self._version(self._client.get_model_version(one.name, one.version))
                for model in names
                for one in every(partial(self._client.search_model_versions, _only(model)))
                if one.name == model
            ]
        except Exception as error:
            raise self._gone(error) from error
        return sorted(found, key=lambda one: (one.name, one.number))

    def champion(self, name: str) -> Version | None:
        """Return the champion, or None. Raises ExportError if the registry fails."""
        return self._named(name, alias=CHAMPION)

    def find(self, uri: str) -> Version:
        """Return the version of a `models:/` URI. Raises ExportError if it is missing."""
        named = _URI.fullmatch(uri)
        if named is None:
            raise ExportError(f"MODEL: found {uri!r}, allowed: models:/NAME@ALIAS or models:/NAME/VERSION")
        found = self._named(**named.groupdict())
        if found is not None:
            return found
        versions = self.versions(named["name"])
        have = ", ".join(f"{one.number}{''.join(f' @{alias}' for alias in one.aliases)}" for one in versions)
        what = f"its versions are {have}" if have else f"its models: {self._names()}"
        raise ExportError(f"MODEL: the registry {redact(self.given)} has no {uri!r}; {what}")

    def _named(self, name: str, *, alias: str | None = None, version: str | None = None) -> Version | None:
        """Find a version by alias or number, in one request, since servers ask every two seconds."""
        from mlflow.exceptions import MlflowException

        if self._is_empty:
            return None
        try:
            if alias is not None:
                return self._version(self._client.get_model_version_by_alias(name, alias))
            return self._version(self._client.get_model_version(name, str(version)))
        except MlflowException as error:
            if error.error_code in _NO_SUCH:
                return None
            raise self._gone(error) from error
        except Exception as error:
            raise self._gone(error) from error

    def package(self, version: Version, folder: Path) -> Path:
        """Return a version's package, copied into `folder` if remote. Raises ExportError if it is unreadable."""
        import mlflow.artifacts

        try:
            place = Path(
                mlflow.artifacts.download_artifacts(
                    artifact_uri=version.source, tracking_uri=self._uri, dst_path=str(folder)
                )
            )
        except Exception as error:
            raise ExportError(f"the files of {version.label} cannot be read: {in_one_line(error)}") from error
        remember(version.tags.get(PROGRAMS_TAG, "").split())
        return place / "artifacts" / _MODEL

    def register(
        self,
        name: str,
        folder: Path,
        *,
        experiment: str,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        params: Mapping[str, Any],
        spec: Mapping[str, Any],
        at: float,
    ) -> Version:
        """Register an MLflow model as a new version, `at` seconds since 1970. Raises ExportError if that fails."""
        from mlflow.exceptions import MlflowException

        try:
            experiment_of_run = experiment_id(self._client, self._uri, experiment)
            run = create(self._client, experiment_of_run, {**tags, BY_TAG: BY_PROMOTION}, f"promote {name}", at)
            write(self._client, run, points(metrics, 0, at), param_values(params))
            self._client.log_text(run.run_id, json.dumps(redact_deep(dict(spec)), indent=1), SPEC_FILE)
            self._client.log_inputs(run.run_id, datasets(spec))
            self._client.log_artifacts(run.run_id, str(folder), _MODEL)
            try:
                self._client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = f"{self._client.get_run(run.run_id).info.artifact_uri}/{_MODEL}"
            programs = " ".join(map(digest_of, sorted((folder / "artifacts" / _MODEL).glob("*.pt2"))))
            made = self._client.create_model_version(name, source, run.run_id, tags={**tags, PROGRAMS_TAG: programs})
            set_status(self._client, run, "FINISHED", at)
        except Exception as error:
            raise self._gone(error) from error
        return self._version(made)

    def name_version(self, version: Version, alias: str) -> None:
        """Move an alias to a version. Raises ExportError if the registry fails."""
        try:
            self._client.set_registered_model_alias(version.name, alias, str(version.number))
            if alias == CHAMPION and CHALLENGER in version.aliases:
                self._client.delete_registered_model_alias(version.name, CHALLENGER)
        except Exception as error:
            raise self._gone(error) from error

    def _version(self, found: Any) -> Version:
        return Version(
            name=found.name,
            number=int(found.version),
            aliases=tuple(found.aliases or ()),
            tags=dict(found.tags or {}),
            source=found.source,
        )

    def _names(self) -> str:
        return ", ".join(sorted({one.name for one in self.versions()})) or "none"

    def _gone(self, error: Exception) -> ExportError:
        return ExportError(f"--mlflow: {redact(self.given)!r} does not answer: {in_one_line(error)}")
