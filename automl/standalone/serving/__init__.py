"""A model server that runs without the rest of the project: `python -m predictor.serving MODEL`.

gunicorn's master owns the port and replaces workers that end. In each worker, uvicorn serves the application of `app`,
and one thread runs the model on the rows of several requests at once. Packages contain this folder and its parent. The
modules may import FastAPI, gunicorn, uvicorn, prometheus-client and pydantic-settings, which the model does not need.
"""
