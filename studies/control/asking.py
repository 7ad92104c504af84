"""Parameters that trials ask for as they run: what an attempt is given for them, and what is written of its answers."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.asked import Asked, as_plain
from studies.asked import ASKED, proposed_in
from studies.control.live_study import LiveStudy
from studies.control.setup import StudySetup
from studies.control.trials import Trial
from studies.gangs.protocol import ParameterAsked
from studies.storage.changes import TrialChanged


def proposed(setup: StudySetup, trial: Trial) -> Mapping[str, Asked] | None:
    """What an attempt gets for parameters that it may ask for: what earlier ones got, else what the sampler proposed.

    Returns:
        None if the space of the study is whole, so that a trial may ask for nothing beside it.
    """
    return {**proposed_in(trial.sampler_attributes), **trial.asked} if setup.learns_space else None


def note(live: LiveStudy, trial: Trial, event: ParameterAsked) -> None:
    """Make what a trial has asked for one of its parameters; a later attempt asks for the same again."""
    if trial.asked.get(event.name) == event.asked:
        return
    trial.has_asked(event.name, event.asked)
    trial.sampler_attributes = {**trial.sampler_attributes, ASKED: as_plain(trial.asked)}
    columns = {"params": trial.params, "sampler_attributes": trial.sampler_attributes}
    live.outbox.write(TrialChanged(trial_id=trial.id, columns=columns))  # type: ignore[arg-type]
