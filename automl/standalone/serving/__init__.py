"""A model behind HTTP, where nothing else of the project is: `python -m predictor.serving MODEL`.

`__main__` is the entrance. A supervisor process owns the port and starts worker processes, each of which answers
requests in an event loop and runs the model in one thread, on the rows of several requests at once.

This room is copied into packages with `..`, and is imported when a model is served. Its modules may import FastAPI,
uvicorn, prometheus-client and pydantic-settings, which need not be there to run the model alone.
"""
