"""`automl worker`."""

import os
import socket
from pathlib import Path

import click

from automl.service.workers.queue_worker import Worker
from automl.service.workers.traces import writer
from automl.signals import draining_signals, private_files
from automl.stored.open_store import open_or_create
from automl.terminal.options import device_option, folder_type, store_option
from search_spaces.messages import UserError
from studies.gangs.available_slots import find_slots
from studies.queueing.job_queue import JobQueue


@click.command()
@store_option
@click.option(
    "--slots", type=click.IntRange(1),
    help="Number of slots (devices) to use; by default one per GPU, else one per CPU.",
)  # fmt: skip
@device_option
@click.option("--name", help="Name of this worker; the machine's name and the process id by default.")
@click.option(
    "--logs", type=folder_type, default=Path("automl_logs"), show_default=True,
    help="Folder for the log files of the studies.",
)  # fmt: skip
def worker(store: str | None, slots: int | None, device: str, name: str | None, logs: Path) -> None:
    """Run the studies that wait in the queue of a store.

    Each study runs in its own process, on the number of slots in its spec. On Ctrl-C or SIGTERM, running trials end
    their epoch and write checkpoints; other workers continue the studies.
    """
    places = find_slots(device, 1, None)
    most = slots or places.slots
    if places.device == "cuda" and most > places.slots:
        raise UserError(f"--slots is {most}, but this machine has {places.slots} GPUs")
    queue = JobQueue(open_or_create(store))
    log = writer()
    one = Worker(
        queue=queue,
        name=name or f"{socket.gethostname()}-{os.getpid()}",
        device=places.device,
        slots=most,
        devices=_gpus(most) if places.device == "cuda" else (),
        log_folder=logs.absolute(),
        log=log,
    )
    with private_files(), draining_signals(one.leave, log, "each study drains, and other workers continue it"):
        one.run()


def _gpus(count: int) -> tuple[str, ...]:
    """Return the ids of the first `count` visible GPUs, in the form of CUDA_VISIBLE_DEVICES."""
    seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return tuple(seen[:count] or map(str, range(count)))
