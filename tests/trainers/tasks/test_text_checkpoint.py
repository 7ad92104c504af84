"""The task `text` with a checkpoint: what its files say is what is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.task_files import write
from tests.trainers.tasks.test_text import SIZES, reviews
from trainers.tasks.parts.tokens import PAD, train_tokenizer
from trainers.tasks.text import Text

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
