"""`python -m predictor.serving MODEL`: runs the server."""

import argparse
import sys
from pathlib import Path

from .errors import ServeError
from .serve import serve
from .settings import GONE, PREFIX, Settings, settings_of
from .sources import PathSource


def main() -> int:
    """Run the server until it ends, and return the exit code."""
    given = vars(_parser().parse_args())
    model, file = given.pop("model"), given.pop("settings")
    try:
        serve(settings_of(given, file), PathSource(model), _say)
    except ServeError as error:
        _say(" ".join(str(error).split()))
        return 2
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description="Serve a model that `automl export` wrote.",
        epilog=f"Each option is also an environment variable, such as {PREFIX}PORT.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="A folder, .pt2 or .onnx file that `automl export` wrote.")
    parser.add_argument("--settings", type=Path, metavar="FILE", help=f"File with lines such as {PREFIX}PORT=8000.")
    for name, field in Settings.model_fields.items():
        if name != "token":
            text = argparse.SUPPRESS if name in GONE else (field.description or "").replace("%", "%%")
            parser.add_argument(f"--{name.replace('_', '-')}", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
