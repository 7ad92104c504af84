"""Runs `automl` in a RayJob. Exits with 0 without a complete trial, because a retry would not help."""

from automl.cli import main as run_automl
from automl.terminal.echo import NOTHING_COMPLETE


def main() -> None:
    """Run the command line. Exit with 0 instead of 3, the code for no complete trial."""
    try:
        run_automl()
    except SystemExit as ended:
        if ended.code != NOTHING_COMPLETE:
            raise


if __name__ == "__main__":
    main()
