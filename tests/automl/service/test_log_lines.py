"""Lines of the service's log: whatever is logged is one JSON object a line, without credentials."""

import io
import json
import logging
from typing import Any

from automl.service.workers.traces import JsonHandler, json_line


def logged(say: Any) -> dict[str, Any]:
    """What a library's logger makes of one call."""
    stream = io.StringIO()
    logger, handler = logging.getLogger("test of lines"), JsonHandler(stream)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        say(logger)
    finally:
        logger.removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_error_of_a_library_is_one_line_with_its_traceback() -> None:
    def say(logger: logging.Logger) -> None:
        try:
            raise ValueError("postgresql://me:secret@db/automl is\nnot there")
        except ValueError:
            logger.exception("request of %s failed", "postgresql://me:secret@db/automl")

    found = logged(say)
    assert found["message"].endswith("@db/automl failed")
    assert (found["level"], found["logger"]) == ("error", "test of lines")
    assert found["traceback"].startswith("Traceback")
    assert "secret" not in json.dumps(found)


def test_a_warning_has_no_traceback_and_a_line_about_a_trial_names_it() -> None:
    found = logged(lambda logger: logger.warning("two\nlines"))
    assert found["message"] == "two\nlines"
    assert "traceback" not in found
    found = json.loads(json_line("trial 12 paused", study="vision.digits", user=None))
    assert (found["trial"], found["study"]) == ("12", "vision.digits")
    assert "user" not in found
