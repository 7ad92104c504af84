"""A model server that runs without the rest of the project: `python -m predictor.serving MODEL`.

gunicorn's master owns the port and replaces workers that end. In each worker, uvicorn serves the application of `app`,
and a thread runs the model on rows of several requests at once. Exported packages contain this folder and its parent.
These modules may import FastAPI, gunicorn, uvicorn, prometheus-client and pydantic-settings; the model needs none.
"""
