"""`automl resume`."""

from typing import Any

import click

from automl.backend import ServiceBackend, backend_of
from automl.terminal.options import (
    detach_option,
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
@detach_option
@json_option
@quiet_option
@verbose_option
@log_file_option
def resume(study: str, overrides: tuple[str, ...], *, store: str | None, detach: bool, **talk: Any) -> None:
    """Continue a stopped study, or give a study more budget.

    --set budget.usd=5 raises the budget. --set also changes keys of resources, checkpoints and faults. With --server,
    the service queues the study, and the command prints its progress: Ctrl-C ends only the command.
    """
    backend = backend_of(store)
    if isinstance(backend, ServiceBackend):
        from automl.remote.following import Telling, take_leave_or_follow

        telling = Telling(as_json=talk["as_json"], quiet=talk["quiet"])
        take_leave_or_follow(backend.client, backend.resume(study, overrides), telling, detach=detach)
        return
    from automl.launching.launch_or_resume import resume as continue_study
    from automl.terminal.study_run_output import Talk, drive_in_terminal

    wanted = Talk(**talk)
    wanted.check()
    opened = backend.store
    opened.require(study)
    drive_in_terminal(lambda watcher: continue_study(opened, study, overrides, watcher), wanted)
