"""The next token of exported language models: only the outputs that an answer needs leave the runtime's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from automl.exporting.formats import save_program, write_onnx
from automl.standalone.model import load
from tests.support import optional
from tests.trainers.tasks.test_text import reviews
from trainers.programs import example_call, traced
from trainers.tasks.language_model import LanguageModel

PROMPTS = ["the film was", "a story with some", "lovely", ""]
PAPERS: dict[str, Any] = {
    "study": "s", "trial": 0, "epoch": 1, "task": "language_model", "licence": None, "data": {}, "environment": {},
    "metrics": {}, "params": {},
}  # fmt: skip
"""What a manifest says beside rows and answers."""


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_only_the_last_place_becomes_numbers_of_python(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
