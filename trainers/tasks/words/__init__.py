"""Parts of the tasks `text` and `language_model`."""
