"""The task `text` with a checkpoint: what its files say is what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import optional
from tests.support.task_files import write
from tests.trainers.tasks.test_text import SIZES, reviews
from trainers.protocol import TaskError
from trainers.tasks.text import Text
from trainers.tasks.words.text_networks import _trimmed
from trainers.tasks.words.tokens import PAD, train_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "reviews.tsv", reviews(100), "\t")


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_checkpoint_of_16_bits_is_trained_in_32(file: str, tmp_path: Path, precision: torch.dtype) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    tokenizer = train_tokenizer([text for text, _ in reviews(100)], vocabulary=200, lowercase=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = AutoConfig.for_model(
        "bert", vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, pad_token_id=PAD, **SIZES["bert"]
    )
    AutoModelForSequenceClassification.from_config(config).to(precision).save_pretrained(tmp_path)
    task = Text(file, checkpoint=str(tmp_path), longest=32)
    model = task.model({})
    assert {values.dtype for values in model.parameters()} == {torch.float32}
    assert model(task.encode(["the film was lovely"])).dtype == torch.float32


def byte_tokenizer() -> Any:
    """A tokenizer of all bytes, from "!" on, with the special tokens of Llama 3: none has a usual name for padding."""
    parts = ("models", "pre_tokenizers", "decoders", "trainers")
    models, pre_tokenizers, decoders, trainers = (optional.module(f"tokenizers.{name}") for name in parts)
    tokenizer: Any = optional.module("tokenizers").Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(["a good film! a bad film!"], trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    return tokenizer


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"eos_token_id": "<|eot_id|>"}, {"pad_token": "<|end_of_text|>"}, "<|end_of_text|>"),
        ({}, {"pad_token": {"content": "<|eot_id|>"}}, "<|eot_id|>"),
        ({"pad_token_id": "<|eot_id|>", "eos_token_id": "<|end_of_text|>"}, {}, "<|eot_id|>"),
        ({"pad_token_id": None, "eos_token_id": ["<|end_of_text|>", "<|eot_id|>"]}, None, "<|end_of_text|>"),
        ({"pad_token_id": "!"}, {"pad_token": None}, None),
        (None, None, None),
    ],
)
def test_what_fills_a_text_up_is_no_word(file, tmp_path, config, tokenizer_config, expected) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        config = {key: _numbered(tokenizer, value) for key, value in config.items()}
        (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer_config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if expected is None:
        with pytest.raises(TaskError, match=r"^task_options\.checkpoint: .* has no special token"):
            Text(file, checkpoint=str(tmp_path))
        return
    task = Text(file, checkpoint=str(tmp_path), longest=64)
    pad = tokenizer.token_to_id(expected)
    short, longer = task.encode(["good ! ! bad", "good film " * 9]).tolist()
    assert pad in short
    assert pad not in longer
    assert tokenizer.decode([one for one in short if one != pad], skip_special_tokens=False) == "good ! ! bad"
    assert task.preprocessing()["pad"] == pad


def _numbered(tokenizer: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_numbered(tokenizer, one) for one in value]
    return tokenizer.token_to_id(value) if isinstance(value, str) else value


def test_texts_are_trimmed_behind_the_last_token_that_counts() -> None:
    assert _trimmed(torch.tensor([[5, 0, 6, 0, 0], [7, 0, 0, 0, 0]]), 0).tolist() == [[5, 0, 6], [7, 0, 0]]
    assert _trimmed(torch.zeros(2, 3, dtype=torch.int64), 0).shape == (2, 1)
