"""A trained model on its own: rows in, answers out. `model` loads it.

`automl export` copies this folder, alone, into each package. So its modules import only the standard library and each
other, by relative names; torch or ONNX Runtime, and Pillow or `tokenizers` for images or texts, are imported on use.
"""
