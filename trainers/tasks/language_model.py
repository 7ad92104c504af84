"""Language models: decoder-only transformers, trained from scratch to continue texts of any kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainers.contract.task import Params
from trainers.protocol import TaskError
from trainers.tasks.shared import task_options
from trainers.tasks.shared.split_task import SplitTask, check_share, split
from trainers.tasks.words.tokens import END, FEWEST, Tokens, form_of, joined, train_byte_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space

_TOLD_TOKENS = 5  # number of next tokens with probabilities in an exported model's answer
_FEWEST_DOCUMENTS = 20
"""With fewer documents, the end of each document is for validation; otherwise documents are kept whole."""


class LanguageModel(SplitTask):
    """Predicts the next token. Outputs [n, length, tokens], targets [n, length]; `perplexity` is exp(mean loss).

    Texts are joined, with a token between documents, and cut into equal sequences.
    """

    parameters = ("width", "depth", "heads", "dropout")
    metric_names = ("perplexity", "tokens_per_second", "val_token_accuracy")
    path_options = ("train", "validation", "test")
    no_test = "there are no test texts. Set task_options.test to a file, or test_share above 0"
    _parts: Mapping[str, Tokens]
    """Sequences int64 [n, length + 1] of "train", "validation" and, if present, "test"."""

    def __init__(
        self,
        train: str,
        *,
        test: str | None = None,
        validation: str | None = None,
        files: str = "*.txt",
        separator: str = "\n\n",
        length: int = 128,
        vocabulary: int = 4096,
        encoding: str = "utf-8",
        validation_share: float = 0.1,
        test_share: float = 0.0,
    ) -> None:
        """Read the texts, train the tokenizer on training texts, and cut all texts into sequences. Raises TaskError.

        Args:
            test: File or folder for testing, which the search never uses.
            separator: Text between the documents of a file; "" makes each file one document.
            vocabulary: Largest number of tokens, including 256 single bytes.
        """
        given = {"validation": validation, "test": test}
        shares = {
            "validation": 0.0 if validation else check_share(validation_share, "validation_share", lowest=0.001),
            "test": 0.0 if test else check_share(test_share, "test_share", lowest=0.0),
        }
        self.length = task_options.whole(length, "length", low=2, high=65536)
        task_options.whole(vocabulary, "vocabulary", low=FEWEST, high=1_000_000)
        read = _Reader(files, separator, encoding)
        parts = _in_parts(read(task_options.path(train, "train")), shares)
        parts |= {name: read(task_options.path(path, name)) for name, path in given.items() if path is not None}
        self.tokenizer = train_byte_tokenizer(parts["train"], vocabulary)
        self._parts = {name: self._cut(texts, name) for name, texts in parts.items()}

    def describe(self) -> tuple[str, ...]:
        """Return facts about the files, one line each."""
        counts = ", ".join(f"{rows.shape[0] * self.length} ({name})" for name, rows in self._parts.items())
        return (
            f"tokens: {counts}, in sequences of {self.length}",
            f"tokenizer: {self.tokenizer.get_vocab_size()} tokens learned from the training texts",
        )

    @property
    def training_samples(self) -> int:
        """Number of sequences in the training part."""
        return len(self._parts["train"])

    def model(self, params: Params) -> nn.Module:
        """Return the transformer. Raises TaskError unless `width` is a multiple of 2 x `heads`."""
        from trainers.tasks.words.text_networks import DecoderNetwork

        width, heads = cast("int", params.get("width", 256)), cast("int", params.get("heads", 4))
        if width % (2 * heads):
            raise TaskError(f"heads: found {heads}, allowed: a divisor of {width} / 2, half the width")
        return DecoderNetwork(
            tokens=self.tokenizer.get_vocab_size(),
            width=width,
            depth=cast("int", params.get("depth", 4)),
            heads=heads,
            dropout=cast("float", params.get("dropout", 0.1)),
            meaning=self.tokenizer.to_str(),
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sequence's mean cross entropy per token, in nats, shape [n]."""
        return self.smoothed_loss(outputs, targets, 0.0)

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each sequence's loss, shape [n], with `smoothing` of each target spread over all tokens."""
        from torch.nn.functional import cross_entropy

        by_token = cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing)
        return by_token.view(targets.shape).mean(dim=1)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the fraction of correctly predicted tokens of each sequence, shape [n]."""
        return {"val_token_accuracy": (outputs.argmax(dim=-1) == targets).double().mean(dim=1)}

    def derived_metrics(self, metrics: Mapping[str, float], _params: Params) -> dict[str, float]:
        """Return the perplexity, and the tokens per second in training."""
        derived = {}
        if "val_loss" in metrics:
            derived["perplexity"] = math.exp(min(metrics["val_loss"], 700.0))
        if "samples_per_second" in metrics:
            derived["tokens_per_second"] = self.length * metrics["samples_per_second"]
        return derived

    def encode(self, rows: Sequence[str] | str | Path) -> Tensor:
        """Return a text's complete token sequences, int64 [n, length]. Raises TaskError for a shorter text."""
        import torch

        texts = [Path(rows).read_text(encoding="utf-8")] if isinstance(rows, str | Path) else list(rows)
        return torch.from_numpy(self._cut(texts, "rows"))[:, :-1]

    def decode(self, outputs: Tensor) -> list[str]:
        """Return each sequence's most likely next token, from outputs [n, length, tokens]."""
        return [self.tokenizer.decode([token]) for token in outputs[:, -1].argmax(dim=-1).tolist()]

    def preprocessing(self) -> dict[str, Any]:
        """Describe the steps from a text to tokens as plain values. Of a long text, only the end is used."""
        end = END
        return form_of(self.tokenizer, longest=self.length, pad=None, keep="end", unknown=end, first=end)

    def postprocessing(self) -> dict[str, Any]:
        """Describe the outputs as plain values: logits of the next token at each place."""
        return {"kind": "next_token", "count": _TOLD_TOKENS}

    def space(self) -> Space:
        """Return the default search space."""
        from search_spaces.parameters import Categorical, Float, Int
        from search_spaces.space import Space

        return Space(
            {
                "learning_rate": Float(low=1e-3, high=5e-2, log=True),
                "batch_per_rank": Categorical([8, 16, 32]),
                "optimizer": Categorical(["adamw"]),
                "weight_decay": Float(low=1e-3, high=3e-1, log=True),
                "clip_norm": Categorical([1.0]),
                "width": Categorical([64, 128, 256]),
                "depth": Int(low=2, high=6),
                "heads": Categorical([4]),
                "dropout": Float(low=0.0, high=0.3),
            }
        )

    def _part(self, name: str) -> tuple[Tensor, Tensor]:
        import torch

        sequences = torch.from_numpy(self._parts[name])
        return sequences[:, :-1], sequences[:, 1:]

    def _cut(self, texts: Sequence[str], name: str) -> Tokens:
        """Return token sequences, int64 [n, length + 1]. Each begins with the last token of the previous sequence."""
        tokens = joined(self.tokenizer, texts)
        count = (len(tokens) - 1) // self.length
        if count < 1:
            what = f"{len(tokens)} tokens of text for {name} are too few for length {self.length}. Give more text"
            raise TaskError(what)
        starts = self.length * np.arange(count)[:, None]
        sequences: Tokens = tokens[starts + np.arange(self.length + 1)]
        return sequences


class _Reader:
    def __init__(self, files: str, separator: str, encoding: str) -> None:
        if ".." in Path(files).parts or Path(files).is_absolute():
            raise TaskError(f"files: found {files!r}, allowed: a pattern of files in the folder, such as *.txt")
        self._files, self._separator, self._encoding = files, separator, encoding

    def __call__(self, path: str) -> list[str]:
        place = Path(path)
        inside = (one for one in place.rglob(self._files) if one.resolve().is_relative_to(place.resolve()))
        paths = sorted(one for one in inside if one.is_file()) if place.is_dir() else [place]
        if not paths:
            raise TaskError(
                f"{path}: no file in this folder matches {self._files!r}. Set task_options.files to match texts"
            )
        documents = [text for one in paths for text in self._documents_of(one)]
        if not documents:
            raise TaskError(f"{path}: no text found. Name a file or a folder of texts")
        return documents

    def _documents_of(self, path: Path) -> list[str]:
        try:
            text = path.read_text(encoding=self._encoding)
        except (OSError, LookupError, UnicodeError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise TaskError(
                f"{path}: not readable as {self._encoding} text ({reason}). Correct path or task_options.encoding"
            ) from None
        parts = text.split(self._separator) if self._separator else [text]
        return [part for part in parts if part.strip()]


def _in_parts(documents: list[str], shares: Mapping[str, float]) -> dict[str, list[str]]:
    if len(documents) >= _FEWEST_DOCUMENTS:
        rows = split(None, len(documents), **shares)
        parts = {name: [documents[row] for row in one] for name, one in zip(("train", *shares), rows, strict=True)}
    else:
        parts = {"train": [], "validation": [], "test": []}
        for document in documents:
            size = len(document)
            to_train = size - round(size * (shares["validation"] + shares["test"]))
            to_validate = to_train + round(size * shares["validation"])
            ends = {"train": (0, to_train), "validation": (to_train, to_validate), "test": (to_validate, size)}
            for name, (start, end) in ends.items():
                parts[name].append(document[start:end])
    return {name: texts for name, texts in parts.items() if any(texts)}
