"""Entry point of `python -m automl`, for `torchrun --nproc-per-node 2 -m automl train digits`."""

from automl.cli import main

if __name__ == "__main__":
    main()
