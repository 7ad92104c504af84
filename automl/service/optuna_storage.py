"""Optuna's storage as one project may see it: its own studies, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, NoReturn, TypeVar

from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from automl.service.lasting_ids import LastingIds, Mark
from studies.storage.optuna_view import UID_ATTRIBUTE

Found = TypeVar("Found")


class ReadOnlyError(RuntimeError):
    """Something tried to write: the view is written by the controllers of the studies alone."""


class ProjectStorage(BaseStorage):
    """A storage without the studies of others; asked for one of those, it knows nothing of it.

    Args:
        inner: Storage with all studies.
        visible: Function that returns the names of the studies that may be seen now.
        ids: Ids by which studies are known outside, shared by all who remember them together.
    """

    def __init__(self, inner: BaseStorage, visible: Callable[[], Container[str]], ids: LastingIds) -> None:
        self._inner, self._visible, self._ids = inner, visible, ids

    def _read(self, study_id: int, read: Callable[[int], Found]) -> Found:
        """Return what is read of a study that may be seen.

        Whose it is is looked up afterwards: an id may become another study's at any moment, but no study comes back.

        Raises:
            KeyError: There is no such study that may be seen.
        """
        inner = self._ids.meant(study_id)
        found = read(inner)
        mark = _mark(self._inner.get_study_name_from_id(inner), self._inner.get_study_user_attrs(inner))
        if mark.name not in self._visible() or self._ids.told(inner, mark) != study_id:
            raise KeyError(study_id)
        return found

    # ------------------------------------------------------------------ reading

    def get_all_studies(self) -> list[Any]:
        """Return the studies that may be seen, by id."""
        visible = self._visible()
        own = [study for study in self._inner.get_all_studies() if study.study_name in visible]
        for study in sorted(own, key=_id_of):
            study._study_id = self._ids.told(_id_of(study), _mark(study.study_name, study.user_attrs))  # noqa: SLF001
        return sorted(own, key=_id_of)

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the id of a study that may be seen."""
        if study_name not in self._visible():
            raise KeyError(study_name)
        inner = self._inner.get_study_id_from_name(study_name)
        return self._ids.told(inner, _mark(study_name, self._inner.get_study_user_attrs(inner)))

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the name of a study that may be seen."""
        return self._read(study_id, self._inner.get_study_name_from_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return the directions of a study that may be seen."""
        return self._read(study_id, self._inner.get_study_directions)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the user attributes of a study that may be seen."""
        return self._read(study_id, self._inner.get_study_user_attrs)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the system attributes of a study that may be seen."""
        return self._read(study_id, self._inner.get_study_system_attrs)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of a study that may be seen."""
        return self._read(study_id, lambda inner: self._inner.get_all_trials(inner, deepcopy=deepcopy, states=states))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Know of no trial: the id of one does not say whose it is, and no page asks for one without its study."""
        raise KeyError(trial_id)

    # ------------------------------------------------------------------ writing

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to write.

        Raises:
            ReadOnlyError: Always.
        """
        raise ReadOnlyError("this storage is for reading")

    create_new_study = delete_study = set_study_user_attr = set_study_system_attr = _refuse
    create_new_trial = set_trial_param = set_trial_state_values = set_trial_intermediate_value = _refuse
    set_trial_user_attr = set_trial_system_attr = _refuse


def _id_of(study: Any) -> int:
    return int(study._study_id)  # noqa: SLF001 - the only name that Optuna has for it


def _mark(name: str, attributes: Mapping[str, Any]) -> Mark:
    return Mark(name, str(attributes.get(UID_ATTRIBUTE, "")))
