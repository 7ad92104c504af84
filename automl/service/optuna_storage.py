"""Optuna's storage as one project may see it: its own studies, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NoReturn

from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState


class ReadOnlyError(RuntimeError):
    """Something tried to write: the view is written by the controllers of the studies alone."""


class ProjectStorage(BaseStorage):
    """A storage without the studies of others; asked for one of those, it knows nothing of it.

    Args:
        inner: Storage with all studies.
        visible: Function that returns the names of the studies that may be seen now.
    """

    def __init__(self, inner: BaseStorage, visible: Callable[[], Container[str]]) -> None:
        self._inner, self._visible = inner, visible

    def _own(self, study_id: int) -> int:
        """Return the id of a study that may be seen.

        Raises:
            KeyError: There is no such study that may be seen.
        """
        if self._inner.get_study_name_from_id(study_id) not in self._visible():
            raise KeyError(study_id)
        return study_id

    # ------------------------------------------------------------------ reading

    def get_all_studies(self) -> list[Any]:
        """Return the studies that may be seen, by id."""
        visible = self._visible()
        own = [study for study in self._inner.get_all_studies() if study.study_name in visible]
        return sorted(own, key=lambda study: study._study_id)  # noqa: SLF001 - the only name that Optuna has for it

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the id of a study that may be seen."""
        return self._own(self._inner.get_study_id_from_name(study_name))

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the name of a study that may be seen."""
        return self._inner.get_study_name_from_id(self._own(study_id))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return the directions of a study that may be seen."""
        return self._inner.get_study_directions(self._own(study_id))

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the user attributes of a study that may be seen."""
        return self._inner.get_study_user_attrs(self._own(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the system attributes of a study that may be seen."""
        return self._inner.get_study_system_attrs(self._own(study_id))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of a study that may be seen."""
        return self._inner.get_all_trials(self._own(study_id), deepcopy=deepcopy, states=states)

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
