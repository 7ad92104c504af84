"""A trained model that predicts rows without its training code. The module `model` loads it.

`automl export` copies this folder into each package. So its modules import only the standard library and each other, by
relative names; torch, ONNX Runtime, Pillow and `tokenizers` are imported on use.
"""
