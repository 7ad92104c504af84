"""From a spec to a study that has ended; `launch`, `resume`, a worker and Python's `automl.launch` share these steps.

In order: `reading` (or `quickstart`, `from_code`) gives a spec with absolute paths, `preparing` checks it (`probing`
asks the task), `earlier_studies` adds prior data, `launching` creates, finds or resumes the study, and `driving` runs
its controller on its pool (with `model_counting` beside it). `dry_run` prints what would run, `outlook` what it would
cost; `template` writes a first spec; it and `quickstart` choose `objectives`.
"""
