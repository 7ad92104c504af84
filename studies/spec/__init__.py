"""The spec, which describes a study: its sections, checks and errors."""
