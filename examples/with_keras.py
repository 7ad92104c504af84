"""A Keras model as a trial: two interleaved half-moons, classified by a small network."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras
from own_task import moons

import automl
from automl.libraries import keras as trial_keras


def train(trial: automl.Trial) -> None:
    keras.utils.set_random_seed(trial.seed % 2**32)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(trial.params["width"], activation="relu"), layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(trial.learning_rate), loss=loss, metrics=["accuracy"])
    inputs, targets = (part.numpy() for part in moons(600, seed=0))
    validation = tuple(part.numpy() for part in moons(300, seed=1))
    trial_keras.fit(trial, model, inputs, targets, validation_data=validation)
