"""Exit codes of the command line; 0 is success."""

FAILED = 1  # the work failed
WRONG_INPUT = 2  # the input was wrong, and nothing was written
NOTHING_COMPLETE = 3  # the study ended, and no trial completed
INTERRUPTED = 130  # Ctrl-C, a signal or `automl stop` ended it; `automl resume` continues
