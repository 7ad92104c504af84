"""The next token of exported language models: only the outputs that an answer needs leave the runtime's memory."""

from typing import Any

import pytest
import torch

from automl.exporting.formats import save_program, write_onnx
from automl.standalone.answers import TokenAnswers
from automl.standalone.model import load
from automl.standalone.text_rows import TextRows
from tests.support import optional
from tests.trainers.tasks.test_text import reviews
from tests.trainers.tasks.test_text_checkpoint import byte_tokenizer
from trainers.model.traced_program import example_call, traced
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.words.tokens import form_of, train_tokenizer

PROMPTS = ["the film was", "a story with some", "lovely", ""]
PAPERS: dict[str, Any] = {
    "study": "s", "trial": 0, "epoch": 1, "task": "language_model", "licence": None, "data": {}, "environment": {},
    "metrics": {}, "params": {},
}  # fmt: skip
"""What a manifest says beside rows and answers."""


@pytest.mark.medium
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_only_the_last_place_becomes_numbers_of_python(tmp_path, ending, monkeypatch):
    optional.module("tokenizers")
    (tmp_path / "text.txt").write_text("\n\n".join(text for text, _ in reviews(100)))
    task = LanguageModel(str(tmp_path / "text.txt"), length=8, vocabulary=300)
    network = task.model({"width": 8, "heads": 2, "depth": 1}).eval()
    program = traced(example_call(network, (task.validation_data({})[0][:2],)), longest=8)
    manifest = {
        "format": 1, "rows": task.preprocessing(), "answers": task.postprocessing(), "programs": ["model.pt2"],
    }  # fmt: skip
    path = tmp_path / f"model{ending}"
    if ending == ".pt2":
        save_program(program, manifest, path)
    else:
        optional.module("onnxruntime")
        write_onnx([program], PAPERS | manifest, path)
    model = load(path)
    asked = []
    run = type(model._programs[0]).run

    def noting(*arguments: Any, **options: Any) -> list[Any]:
        asked.append(run(*arguments, **options))
        return asked[-1]

    monkeypatch.setattr(type(model._programs[0]), "run", noting)
    answers = model.predict(PROMPTS)
    tokens = task.tokenizer.get_vocab_size()
    assert {torch.tensor(outputs).shape[1:] for outputs in asked} == {(tokens,)}
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        row = torch.tensor([list(model.rows.encode(prompt, 0).numbers)])
        expected = network(row)[0, -1].softmax(0).max().item()
        assert answer["confidence"] == pytest.approx(expected, rel=1e-4)


def test_tokens_that_decode_alike_keep_their_own_probabilities() -> None:
    """A Chinese character is three bytes, and a token of one or two of them is no text."""
    tokenizer = byte_tokenizer()
    rows = TextRows(form_of(tokenizer, longest=8, pad=None))
    parts = [tokenizer.token_to_id(character) for character in bytes_of("今")]
    whole = tokenizer.token_to_id("f")
    ending = tokenizer.token_to_id("<|end_of_text|>")
    assert {tokenizer.decode([one]) for one in parts} == {"\ufffd"}
    logits = [-20.0] * tokenizer.get_vocab_size()
    for number, logit in zip([*parts, whole, ending], (5.0, 4.0, 3.0, 2.0, 1.0), strict=True):
        logits[number] = logit
    answer = TokenAnswers({"count": 5}, rows).answer([logits])
    assert len(answer["probabilities"]) == 5
    assert answer["probabilities"][answer["token"]] == answer["confidence"] == max(answer["probabilities"].values())
    assert list(answer["probabilities"])[3:] == ["f", "<|end_of_text|>"]


def test_the_beginning_and_the_inside_of_words_are_told_apart() -> None:
    tokenizer = train_tokenizer(["the film was the film", "filming the theme"] * 4, vocabulary=100, lowercase=True)
    tokenizer.decoder = optional.module("tokenizers.decoders").Metaspace()
    rows = TextRows(form_of(tokenizer, longest=8, pad=None))
    inside, beginning, other = (tokenizer.token_to_id(token) for token in ("the", "\u2581the", "lm"))
    assert rows.names([inside, beginning, other]) == ["the", "\u2581the", "lm"]
    assert rows.names([beginning, other]) == ["the", "lm"]


def bytes_of(text: str) -> str:
    """The characters that stand for the bytes of a text in byte-level vocabularies."""
    pre_tokenizers = optional.module("tokenizers.pre_tokenizers")
    (piece, _), *rest = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert not rest
    return str(piece)
