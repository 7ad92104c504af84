"""A training script before any search: reads arguments, and prints one JSON line for each epoch."""

import argparse
import json

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float, default=1e-4)
parser.add_argument("--eta", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=10)
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
train_x, val_x, train_y, val_y = train_test_split(images / 16, labels, random_state=0)
model = SGDClassifier(alpha=options.alpha, learning_rate="constant", eta0=options.eta, random_state=0)
for epoch in range(1, options.epochs + 1):
    model.partial_fit(train_x, train_y, classes=range(10))
    print(json.dumps({"epoch": epoch, "val_error": 1 - model.score(val_x, val_y)}), flush=True)
