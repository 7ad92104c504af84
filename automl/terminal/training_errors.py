"""Error output of `automl train` and `automl compare`."""

import contextlib
import sys
from collections.abc import Iterator

from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.output import only_json_on_stdout
from trainers.contract.task_loading import TaskLoadError
from trainers.contract.user_code import error_line
from trainers.protocol import TrainingError


@contextlib.contextmanager
def training_errors(as_json: bool) -> Iterator[None]:
    """Print the main line when a training fails; ranks' output stays out of a JSON document."""
    try:
        with only_json_on_stdout(as_json):
            yield
    except TaskLoadError:
        raise
    except TrainingError as error:
        message = str(error)
        line = error_line(message)
        echo(f"error: {line}", err=True)
        if message.strip() != line:
            echo(f"\n{message.strip()}", err=True)
        sys.exit(FAILED)
