"""Description of a study: the spec with its sections, checks and errors."""
