"""Parts of the Python API beside the study itself: the live cell of a notebook."""
