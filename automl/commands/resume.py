"""`automl resume`."""

from __future__ import annotations

import click

from automl.launching.resuming import resume as continue_study
from automl.stored.opening import open_store
from automl.terminal.driven import drive_in_terminal
from automl.terminal.options import json_option, set_option, share_option, store_option


@click.command()
@click.argument("study")
@set_option
@share_option
@store_option
@json_option
def resume(study: str, overrides: tuple[str, ...], *, share_on: str | None, store: str | None, as_json: bool) -> None:
    """Go on with STUDY after any end, or with more budget.

    More budget is given by --set budget.usd=5; resources, checkpoints and faults can be changed, too.
    """
    opened = open_store(store)
    opened.require(study)
    drive_in_terminal(
        lambda watcher: continue_study(opened, study, overrides, watcher, share_on=share_on), as_json=as_json
    )
