"""A trained model on its own: rows in, answers out. `model` loads it.

`automl export` copies this folder into each package, where nothing else of the project is. So its modules import the
standard library and each other alone, by relative names; torch or ONNX Runtime, and Pillow or `tokenizers` where rows
are images or texts, are imported when they are needed.
"""
