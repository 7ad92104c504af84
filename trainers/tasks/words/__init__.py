"""Parts of the tasks `text` and `language_model`, which learn from texts."""
