"""A trained model that predicts rows without its training code. The module `model` loads it.

`automl export` copies only this folder into each package. So its modules import only the standard library and each
other, by relative names; torch or ONNX Runtime, and Pillow or `tokenizers` for images or texts, are imported on use.
"""
