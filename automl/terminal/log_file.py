"""Log file of a command, with the time of each line (`--log-file`)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from automl.terminal.echo import echo
from search_spaces.untrusted_text import escaped
from search_spaces.user_errors import UserError
from search_spaces.wording import found

OWN_LOGGERS = ("automl", "reports", "search_spaces", "studies", "trainers")


class LogFileError(UserError):
    """The log file cannot be written."""


def check_log_file(path: Path | None) -> None:
    """Refuse an unwritable file before anything is written."""
    if path is None:
        return
    allowed = "a file that can be written to, in a folder that exists"
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise LogFileError(f"--log-file: {found(str(path), f'{allowed} ({error.strerror})')}") from None


@contextmanager
def writing(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that logs a line, as warnings do. A full disk ends the log with a warning, not the study."""
    if path is None:
        yield lambda _line: None
        return
    handler = _Handler(path)
    loggers = [logging.getLogger(name) for name in OWN_LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.write
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class _Handler(logging.Handler):
    """Writes records and lines to a file. Records also go to stderr as usual."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._is_open = True

    def write(self, line: str) -> None:
        """Append a line with the time. Control characters are escaped."""
        if not self._is_open:
            return
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            with self.lock or _nothing(), self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{now}  {escaped(line)}\n")
        except OSError as error:
            self._is_open = False
            echo(f"warning: --log-file: cannot write to {self._path} ({error.strerror}); the study continues", err=True)

    def emit(self, record: logging.LogRecord) -> None:
        self.write(f"{record.levelname.lower()}: {self.format(record)}")
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
