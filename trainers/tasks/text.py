"""Classification of texts in CSV or TSV files, by a transformer, n-grams, TF-IDF, or a published checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from automl.standalone.text_rows import cleaned
from search_spaces.messages import install_command, listed, shown
from trainers.contract.task import Params
from trainers.protocol import TaskError
from trainers.tasks.shared import task_options
from trainers.tasks.shared.split_task import Share, SplitTask, part_sizes, parts_of, shares_of, split
from trainers.tasks.shared.task_options import check_columns, check_kind
from trainers.tasks.shared.trivial_models import most_frequent_class
from trainers.tasks.table.files import Table, as_written, find_column, read_like, read_table, texts
from trainers.tasks.table.targets import encode_classes, fit_classes
from trainers.tasks.words import tokens
from trainers.tasks.words.text_space import (
    ARCHITECTURES,
    checkpoint_space,
    fits_tfidf,
    text_baselines,
    text_first_trials,
    text_space,
)
from trainers.tasks.words.tokens import pad_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space

_MOST_CLASSES = 1000


class Text(SplitTask):
    """Classifies texts. Outputs [n, classes]; metrics `val_error`, `val_accuracy` and others of `SplitTask`."""

    parameters = (
        *("architecture", "width", "depth", "heads", "dropout", "token_dropout", "pooling", "longest_ngram"),
        *("l2", "layer_rate_decay"),
    )
    path_options = ("train", "validation", "test")
    maybe_path_options = ("checkpoint",)
    options_of_new_studies = MappingProxyType({"test_share": "auto"})

    def __init__(
        self,
        train: str,
        text: str | int = "auto",
        label: str | int = "auto",
        *,
        test: str | None = None,
        validation: str | None = None,
        vocabulary: int = 8000,
        longest: int = 128,
        lowercase: bool = True,
        checkpoint: str | None = None,
        header: bool | str | None = None,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        validation_share: float = 0.15,
        test_share: Share = 0.0,
    ) -> None:
        """Read the files, train the tokenizer on training texts, and tokenize all texts. Raises TaskError.

        Args:
            text: Column of texts: its name, its number from 0, "last", or "auto" for the longest texts.
            label: Column of classes, given in the same ways; "auto" means the column with the fewest values.
            test: File with the same columns for testing, which the search never uses.
            vocabulary: Largest number of tokens; no effect with a checkpoint.
            longest: Number of tokens after which a text is cut off.
            lowercase: True to ignore case; no effect with a checkpoint.
            checkpoint: Folder, or name on the Hugging Face hub, to fine-tune instead of training from scratch.
            header: True if the first line names the columns; None detects it, as for `delimiter`.
        """
        self._form = task_options.form(delimiter=delimiter, header=header, encoding=encoding, missing=[])
        shares = shares_of(validation_share, test_share)
        self._longest = task_options.whole(longest, "longest", low=1, high=8192)
        task_options.whole(vocabulary, "vocabulary", low=100, high=1_000_000)
        self._checkpoint = checkpoint
        expected = [name for name in (text, label) if isinstance(name, str) and name not in {"auto", "last"}]
        whole = read_table(task_options.path(train, "train"), self._form, expected=expected)
        self._text, self._label = find_text_and_label(whole, text, label)
        self._written = as_written(whole.form)
        table = _only(whole, (self._text, self._label))
        others = {
            name: _only(read_like(whole, task_options.path(path, name), self._form), table.names)
            for name, path in (("validation", validation), ("test", test))
            if path is not None
        }
        self.classes = fit_classes(table, self._label)
        labels = encode_classes(table, self._label, self.classes)
        rows = split(labels, len(table), **(shares | dict.fromkeys(others, 0.0)))
        words = _texts(table, self._text)
        if not any(words):
            raise TaskError(f"{table.path}: the text column {self._text!r} is empty. Name another column")
        if checkpoint is None:
            learned = [words[row] for row in rows[0]]
            self._tokenizer = tokens.train_tokenizer(learned, vocabulary=vocabulary, lowercase=lowercase)
            self._pad = tokens.PAD
        else:
            self._tokenizer = _checkpoint_tokenizer(checkpoint)
            self._pad = pad_of(self._tokenizer, checkpoint)
        self._parts = parts_of(self._to_tokens(words), labels, rows) | {
            name: (self._to_tokens(_texts(one, self._text)), encode_classes(one, self._label, self.classes))
            for name, one in others.items()
        }

    def describe(self) -> tuple[str, ...]:
        """Return facts about the files, one line each."""
        learned = f"{self._tokenizer.get_vocab_size()} tokens learned from the training texts"
        model = (
            f"the checkpoint {self._checkpoint}"
            if self._checkpoint
            else f"a transformer from scratch, n-grams or TF-IDF, {learned}"
        )
        return (
            f"text: column {self._text!r}, classes: column {self._label!r}, {listed(map(shown, self.classes))}",
            f"rows: {part_sizes(self._parts)}",
            f"model: {model}",
        )

    def encode(self, rows: Sequence[str] | str | Path) -> Tensor:
        """Return new texts as inputs of the model, int64 [n, tokens]. Raises TaskError."""
        import torch

        if isinstance(rows, str | Path):
            table = read_table(rows, self._form, expected=[self._text])
            check_columns(str(table.path), table.names, known=table.names, needed=[self._text])
            rows = _texts(table, self._text)
        check_kind(rows, (str,), "texts")
        return torch.from_numpy(self._to_tokens([cleaned(row, self._cleaning) for row in rows]))

    def preprocessing(self) -> dict[str, Any]:
        """Return the steps of `encode` as plain values."""
        return (
            tokens.form_of(self._tokenizer, longest=self._longest, pad=self._pad)
            | {"column": self._text}
            | self._written
            | ({} if self._checkpoint is None else self._cleaning)
        )

    def model(self, params: Params) -> nn.Module:
        """Return the network `architecture` or the checkpoint's, with an output for each class."""
        if self._checkpoint is not None:
            return self._from_checkpoint(self._checkpoint, params)
        meaning = (self._tokenizer.to_str(), self.classes)
        vocabulary, outputs = self._tokenizer.get_vocab_size(), len(self.classes)
        architecture = task_options.choice(params.get("architecture", "transformer"), "architecture", ARCHITECTURES)
        if architecture == "tfidf":
            from trainers.tasks.words.ngrams import TfidfRegression

            return TfidfRegression(
                vocabulary=vocabulary,
                outputs=outputs,
                longest_ngram=task_options.whole_parameter(params, "longest_ngram", 1, low=1, high=3),
                l2=task_options.number_parameter(params, "l2", 1.0, low=1e-6, high=1e6),
                meaning=meaning,
            )
        if architecture == "ngrams":
            import torch

            from trainers.tasks.words.ngrams import NgramNetwork

            network = NgramNetwork(
                vocabulary=vocabulary,
                outputs=outputs,
                width=cast("int", params.get("width", 64)),
                longest_ngram=task_options.whole_parameter(params, "longest_ngram", 2, low=1, high=3),
                dropout=cast("float", params.get("dropout", 0.3)),
                token_dropout=cast("float", params.get("token_dropout", 0.1)),
                meaning=meaning,
            )
            with torch.device("cpu"):
                network.start_from(*self.train_data(params))
            return network
        from trainers.tasks.words.text_networks import TextNetwork

        width, heads = cast("int", params.get("width", 128)), cast("int", params.get("heads", 4))
        if width % heads:
            raise TaskError(f"heads: found {heads}, allowed: a divisor of the width, {width}")
        return TextNetwork(
            vocabulary=vocabulary,
            longest=self._longest,
            outputs=outputs,
            width=width,
            depth=cast("int", params.get("depth", 1)),
            heads=heads,
            dropout=cast("float", params.get("dropout", 0.3)),
            token_dropout=cast("float", params.get("token_dropout", 0.1)),
            meaning=meaning,
            pooling=task_options.choice(params.get("pooling", "mean"), "pooling", ("mean", "max", "both")),
        )

    def rate_factors(self, model: nn.Module, params: Params) -> Mapping[str, float] | None:
        """Return factors of the learning rate, falling from the last layer to the first by `layer_rate_decay`."""
        from trainers.tasks.words.text_space import layer_rate_factors

        return layer_rate_factors(model, params)

    def space(self) -> Space:
        """Return the default search space, smaller for a checkpoint."""
        return checkpoint_space() if self._checkpoint is not None else text_space(has_tfidf=self._has_tfidf)

    def first_trials(self) -> list[dict[str, Any]]:
        """Return good parameters, the usual baseline first; none for a checkpoint."""
        return [] if self._checkpoint is not None else text_first_trials(has_tfidf=self._has_tfidf)

    def baselines(self) -> list[dict[str, Any]]:
        """Return the usual baseline, and a trivial baseline that ignores the texts."""
        trivial = most_frequent_class(self)
        return [*text_baselines(has_tfidf=self._has_tfidf), trivial]

    @property
    def _cleaning(self) -> dict[str, bool]:
        """Cleaning of the files' texts, only for checkpoints: other tokenizers here ignore spaces."""
        return {"trimmed": True, "plain_line_ends": bool(self._written)}

    def _to_tokens(self, words: Sequence[str]) -> tokens.Tokens:
        return tokens.to_matrix(self._tokenizer, words, longest=self._longest, pad=self._pad)

    @property
    def _has_tfidf(self) -> bool:
        return fits_tfidf(self._tokenizer.get_vocab_size(), len(self.classes))

    def _from_checkpoint(self, checkpoint: str, params: Params) -> nn.Module:
        from trainers.tasks.words.text_networks import CheckpointNetwork

        dropout = cast("float | None", params.get("dropout"))
        try:
            return CheckpointNetwork(checkpoint, outputs=len(self.classes), dropout=dropout, pad=self._pad)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            raise TaskError(f"task_options.checkpoint: cannot load a model from {checkpoint!r} ({reason})") from None


def find_text_and_label(table: Table, text: str | int = "auto", label: str | int = "auto") -> tuple[str, str]:
    """Return the columns of texts and of classes, as given or detected. Raises TaskError."""
    if len(table.names) < 2:
        problem = f"the only column is {shown(table.names[0])}"
        raise TaskError(f"{table.path}: {problem}. Name a column of texts and one of labels, and check the delimiter")
    sizes = {name: sum(map(len, _texts(table, name))) for name in table.names}
    label_name = None if label == "auto" else find_column(table, label, "task_options.label")
    if text == "auto":
        text_name = max((name for name in table.names if name != label_name), key=lambda name: sizes[name])
    else:
        text_name = find_column(table, text, "task_options.text")
    if label_name is None:
        others = [name for name in table.names if name != text_name]
        varied = [name for name in others if _distinct(table, name) > 1] or others
        label_name = min(varied, key=lambda name: _distinct(table, name))
    if text_name == label_name:
        raise TaskError(f"{table.path}: {text_name!r} is both text and label. Name two columns")
    if _distinct(table, label_name) > _MOST_CLASSES:
        problem = f"column {label_name!r} has {_distinct(table, label_name)} different labels"
        raise TaskError(f"{table.path}: {problem}, more than {_MOST_CLASSES}. Set label to the column of classes")
    return text_name, label_name


def _distinct(table: Table, name: str) -> int:
    return len(table.columns[name].unique())


def _texts(table: Table, name: str) -> list[str]:
    return [word or "" for word in texts(table.columns[name]).to_pylist()]


def _only(table: Table, names: Sequence[str]) -> Table:
    return replace(table, columns={name: table.columns[name] for name in names})


def _checkpoint_tokenizer(checkpoint: str) -> Any:
    if find_spec("transformers") is None:
        raise TaskError(
            f"task_options.checkpoint needs the package transformers. Install it: {install_command('transformers')}"
        )
    return tokens.load_tokenizer(checkpoint)
