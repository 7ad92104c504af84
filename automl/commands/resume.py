"""`automl resume`."""

from __future__ import annotations

from typing import Any

import click

from automl.launching.resuming import resume as continue_study
from automl.stored.opening import open_store
from automl.terminal.driven import Talk, drive_in_terminal
from automl.terminal.options import (
    json_option,
    log_file_option,
    quiet_option,
    set_option,
    store_option,
    study_argument,
    verbose_option,
)


@click.command()
@study_argument
@set_option
@store_option
@json_option
@quiet_option
@verbose_option
@log_file_option
def resume(study: str, overrides: tuple[str, ...], *, store: str | None, **talk: Any) -> None:
    """Go on with STUDY after any end, or with more budget.

    More budget is given by --set budget.usd=5; resources, checkpoints and faults can be changed, too.
    """
    wanted = Talk(**talk)
    wanted.check()
    opened = open_store(store)
    opened.require(study)
    drive_in_terminal(lambda watcher: continue_study(opened, study, overrides, watcher), wanted)
