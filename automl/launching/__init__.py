"""Steps from a spec to a finished study, shared by `launch`, `resume`, workers and Python's `automl.launch`.

`reading` (or `quickstart`, `from_code`) gives a spec, `preparing` checks it (`probing` asks the task),
`earlier_studies` adds prior data, `launching` creates, finds or resumes the study, and `driving` runs its controller.
`dry_run` prints the plan.
"""
