"""A model behind HTTP, where nothing else of the project is: `python -m predictor.serving MODEL`.

`__main__` is the entrance. gunicorn's master owns the port and replaces workers that end; in each worker uvicorn
answers requests by the application of `app`, and one thread runs the model on the rows of several requests at once.

This room is copied into packages with `..`, and is imported when a model is served. Its modules may import FastAPI,
gunicorn, uvicorn, prometheus-client and pydantic-settings, which need not be there to run the model alone.
"""
