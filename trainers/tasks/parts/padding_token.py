"""The token of a checkpoint with which shorter texts are filled up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainers.protocol import TaskError

_USUAL = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")


def pad_of(tokenizer: Any, checkpoint: str) -> int:
    """Return the number of a checkpoint's padding token: by a usual name, else as the checkpoint's files say.

    No text may have it, since the model does not see it: only added tokens count, not those that words become.

    Args:
        tokenizer: The checkpoint's tokenizer.
        checkpoint: A folder, or a name on the Hugging Face hub.

    Raises:
        TaskError: The checkpoint names none.
    """
    usual = next((number for number in map(tokenizer.token_to_id, _USUAL) if number is not None), None)
    if usual is not None:
        return int(usual)
    added = tokenizer.get_added_tokens_decoder()
    said = next((number for number in _said(tokenizer, checkpoint) if number in added), None)
    if said is None:
        allowed = "a pad_token in its tokenizer_config.json, or pad_token_id or eos_token_id in its config.json"
        problem = f"found no special token in {checkpoint!r} to fill shorter texts up with"
        raise TaskError(f"task_options.checkpoint: {problem}, allowed: {allowed}")
    return said


def _said(tokenizer: Any, checkpoint: str) -> Iterator[int]:
    """Yield the numbers of the tokens that a checkpoint's files name for padding, and for the end of a text."""
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    name = get_tokenizer_config(checkpoint).get("pad_token")
    number = tokenizer.token_to_id(str(name["content"] if isinstance(name, dict) else name))
    if number is not None:
        yield number
    try:
        config, _ = PretrainedConfig.get_config_dict(checkpoint)
    except OSError:
        return
    for key in ("pad_token_id", "eos_token_id"):
        named = config.get(key)
        yield from (one for one in (named if isinstance(named, list) else [named]) if isinstance(one, int))
