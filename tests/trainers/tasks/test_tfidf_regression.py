"""TF-IDF with logistic regression: scikit-learn's answers, by way of epochs that may be interrupted."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from trainers.protocol import TaskError
from trainers.tasks.words.ngrams import Ngrams, TfidfRegression
from trainers.tasks.words.text_space import count_of, fits_tfidf, text_baselines, text_first_trials, text_space
from trainers.tasks.words.tokens import PAD

VOCABULARY = 60


def texts_of(count: int, classes: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Texts of 4 to 12 different tokens each, and classes that some of the tokens tell of."""
    random = np.random.default_rng(seed)
    tokens, targets = np.full((count, 12), PAD), random.integers(classes, size=count)
    for row, target in zip(tokens, targets, strict=True):
        length = random.integers(4, 13)
        row[:length] = random.choice(np.arange(3 + classes, VOCABULARY), length, replace=False)
        if random.random() < 0.8:
            row[random.integers(length)] = 3 + target
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def model_of(classes: int, *, longest_ngram: int = 1, l2: float = 1.0) -> TfidfRegression:
    return TfidfRegression(
        vocabulary=VOCABULARY, outputs=classes, longest_ngram=longest_ngram, l2=l2, meaning="words"
    ).eval()


def grow(model: TfidfRegression, tokens: Tensor, targets: Tensor, epochs: range, of: int) -> Tensor:
    with torch.no_grad():
        for epoch in epochs:
            outputs = model.grow_epoch(
                tokens, targets, epoch=epoch, epochs=of, seed=epoch, threads=1, tick=lambda: None
            )
    return outputs


def counts_of(tokens: Tensor, longest_ngram: int) -> np.ndarray:
    numbers, present = Ngrams(VOCABULARY, longest_ngram)(tokens)
    counts = torch.zeros(len(tokens), count_of(VOCABULARY, longest_ngram))
    return counts.scatter_add_(1, numbers, present.float()).numpy()


@pytest.mark.parametrize(("classes", "longest_ngram"), [(2, 1), (5, 1), (5, 2)])
def test_it_says_what_scikit_learn_says(classes: int, longest_ngram: int) -> None:
    tokens, targets = texts_of(300, classes)
    new, _ = texts_of(100, classes, seed=1)
    model = model_of(classes, longest_ngram=longest_ngram, l2=0.5)
    grow(model, tokens, targets, range(1, 11), 10)
    counts = counts_of(tokens, longest_ngram)
    known = counts.any(axis=0)  # scikit-learn has no column for what no training text has
    tfidf = TfidfTransformer().fit(counts[:, known])
    theirs = LogisticRegression(C=4.0 if classes == 2 else 2.0, tol=1e-8, max_iter=1000)
    theirs.fit(tfidf.transform(counts[:, known]), targets)
    expected = theirs.predict_proba(tfidf.transform(counts_of(new, longest_ngram)[:, known]))
    with torch.no_grad():
        found = model(new).softmax(dim=1).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_fits_that_go_on_or_have_other_epochs_come_to_the_same() -> None:
    tokens, targets = texts_of(200, 3)
    whole, first, second = model_of(3), model_of(3), model_of(3)
    grow(whole, tokens, targets, range(1, 7), 30)
    grow(first, tokens, targets, range(1, 4), 30)
    second.load_state_dict(first.state_dict())
    outputs = grow(second, tokens, targets, range(4, 7), 30)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    torch.testing.assert_close(outputs, whole(tokens))
    tokens, targets = texts_of(300, 3)
    losses = []
    for epochs in (1, 8, 200):
        model = model_of(3, longest_ngram=2, l2=0.01)
        outputs = grow(model, tokens, targets, range(1, epochs + 1), epochs)
        losses.append(functional.cross_entropy(outputs, targets) + 0.01 / 2 * model.weights.square().sum() / 300)
    assert losses[1:] == [pytest.approx(losses[0], rel=0.001)] * 2


def test_a_class_that_no_text_has_and_unknown_words_and_padding_say_nothing() -> None:
    tokens, targets = texts_of(60, 2)
    model = model_of(3)
    grow(model, tokens, targets, range(1, 2), 1)
    assert model(tokens).argmax(dim=1).eq(targets).float().mean() > 0.8
    tokens, targets = texts_of(60, 2)
    model = model_of(2)
    grow(model, tokens, targets, range(1, 2), 1)
    unknown = torch.tensor([[1, 2, PAD], [PAD, PAD, PAD]])  # 1 and 2 stand in no text
    assert torch.equal(model(unknown), model.bias.expand(2, 2))
    tokens, targets = texts_of(60, 2)
    model = model_of(2, longest_ngram=3)
    grow(model, tokens, targets, range(1, 2), 1)
    longer = torch.cat([tokens, torch.full((60, 7), PAD)], dim=1)
    torch.testing.assert_close(model(longer), model(tokens))


def test_with_too_many_weights_n_grams_are_the_baseline() -> None:
    with pytest.raises(TaskError, match="architecture: tfidf with 32828 n-grams and 700 classes has more than 20,000"):
        model_of(700, longest_ngram=2)
    assert fits_tfidf(8000, 490)
    assert not fits_tfidf(8000, 500)
    assert not fits_tfidf(100_000, 201)
    assert text_baselines(has_tfidf=False)[0]["params"]["architecture"] == "ngrams"
    space = text_space(has_tfidf=False)
    for one in text_first_trials(has_tfidf=False):
        space.check(one)
    assert "tfidf" not in space.parameter("architecture").choices  # type: ignore[attr-defined]
