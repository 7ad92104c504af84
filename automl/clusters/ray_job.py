"""The program of a RayJob: `automl` with the same arguments, for which a study without a complete trial is no failure.

    python -m automl.clusters.ray_job launch digits.yaml

KubeRay begins a failed job again on a new cluster, and trains nothing more there if the study has ended. The program
says so itself: the operator puts the entrypoint into a shell script of its own, where `|| ...` would belong to another
command. It runs `automl` in its own process, so that what signals it signals the study.
"""

from __future__ import annotations

from automl.cli import main as run_automl
from automl.terminal.exit_codes import NOTHING_COMPLETE


def main() -> None:
    """Run the command line; exit code 3 becomes 0."""
    try:
        run_automl()
    except SystemExit as ended:
        if ended.code != NOTHING_COMPLETE:
            raise


if __name__ == "__main__":
    main()
