"""Choices of categorical parameters that no trial of a study has tried."""

from collections.abc import Mapping

from search_spaces.parameters import Value
from search_spaces.space import Space
from search_spaces.untried import untried_choices
from search_spaces.user_errors import UserError
from search_spaces.wording import shown
from studies.records.records import StudyRecord

MOST_LISTED = 6  # most choices of one parameter that a sentence lists


def never_tried(study: StudyRecord) -> dict[str, list[Value]]:
    """Return the choices that no started trial has, by parameter; parameters that no trial has are left out."""
    form = study.spec.get("space")
    if not isinstance(form, Mapping):
        return {}
    try:
        space = Space.from_dict(form)
    except UserError:  # a space that a later version wrote
        return {}
    tried = [trial.params for trial in study.started]
    asked = {name for params in tried for name in params}
    return {name: values for name, values in untried_choices(space, tried).items() if name in asked}


def never_tried_in_words(study: StudyRecord) -> str:
    """Return the choices that no trial has, such as `architecture 'residual'; optimizer 'sgd'`; empty without any."""
    return "; ".join(f"{name} {_listed(values)}" for name, values in never_tried(study).items())


def _listed(values: list[Value]) -> str:
    more = len(values) - MOST_LISTED
    listed = ", ".join(map(shown, values[:MOST_LISTED]))
    return f"{listed} and {more} more" if more > 0 else listed
