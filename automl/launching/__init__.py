"""From a spec to a running study: what launch, its dry run, the quickstart and resume share."""
