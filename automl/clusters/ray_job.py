"""Program of a RayJob: runs `automl`. Exits with 0 for a study without a complete trial, as a retry would not help."""

from automl.cli import main as run_automl
from automl.terminal.echo import NOTHING_COMPLETE


def main() -> None:
    """Run the command line. Exit code 3 becomes 0."""
    try:
        run_automl()
    except SystemExit as ended:
        if ended.code != NOTHING_COMPLETE:
            raise


if __name__ == "__main__":
    main()
