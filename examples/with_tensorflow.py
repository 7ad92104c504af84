"""TensorFlow's distribution as a command: its workers are the trial's ranks. Run alone, it uses all local GPUs."""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # `fit` of Keras 3 does not support this strategy
import numpy as np
import tensorflow as tf

import automl

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.03)
parser.add_argument("--epochs", type=int, default=6)
options = parser.parse_args()
has_peers = "TF_CONFIG" in os.environ  # of several ranks, which meet in the strategy
strategy = tf.distribute.MultiWorkerMirroredStrategy() if has_peers else tf.distribute.MirroredStrategy()
tf.keras.utils.set_random_seed(0)
inputs = np.random.default_rng(0).normal(size=(1200, 2)).astype("float32")
targets = (inputs.prod(axis=1) > 0).astype("int32")
batches = tf.data.Dataset.from_tensor_slices((inputs[:960], targets[:960])).batch(64)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu", input_shape=(2,)), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.Adam(options.lr), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
first, state = 1, model.variables + model.optimizer.variables
if folder := automl.resume():
    with np.load(folder / "state.npz") as file:
        first, *values = (file[name] for name in file.files)
    for variable, value in zip(state, values, strict=True):
        variable.assign(value)
for epoch in range(int(first), options.epochs + 1):
    model.fit(batches, verbose=0)
    error = np.mean(model(inputs[960:]).numpy().argmax(axis=1) != targets[960:])
    if (folder := automl.checkpoint(epoch)) and os.environ["RANK"] == "0":
        np.savez(folder / "state.npz", epoch + 1, *(variable.numpy() for variable in state))
    automl.report(epoch=epoch, val_error=float(error))
    print(f"epoch {epoch}: error {error:.3f}")
