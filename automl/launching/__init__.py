"""From a spec to a study that has ended; launch, dry run, quick start and resume share these steps.

In order: `reading` (or `quickstart`) gives a spec, `preparing` checks it (`paths`, `outputs`, `probing`),
`earlier_studies` adds prior data, `launching` creates or finds the study (`resuming` changes its limits), `pools`
builds its pool, and `driving` runs its controller (with `model_counting` beside it). `dry_run` prints what would run;
`first_spec` writes a first spec (`template`); it and `quickstart` choose `objectives` and write spaces (`spec_yaml`).
"""
