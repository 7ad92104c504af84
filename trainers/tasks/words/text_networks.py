"""Networks for texts. Shapes: n texts, t tokens of the longest text in the batch, w width, h heads."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from trainers.protocol import TaskError
from trainers.tasks.shared.data_fingerprint import DataMark
from trainers.tasks.words.tokens import MASK, PAD

_SPREAD = 0.02  # standard deviation of initial weights, as in GPT-2
_LONGEST_TURN = 10000.0  # base of the angles of rotary embeddings (Su et al. 2021, arXiv 2104.09864).


class DecoderNetwork(nn.Module):
    """Transformer decoder with pre-normalisation, rotary embeddings, and shared input and output embeddings.

    Input: tokens int64 [n, t]; output: logits of the next token at each place, [n, t, tokens].
    """

    def __init__(self, *, tokens: int, width: int, depth: int, heads: int, dropout: float, meaning: object) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self.tokens = nn.Embedding(tokens, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)  # with 0.02, learning was a third slower on small data
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_DecoderBlock(width, depth, heads, dropout) for _ in range(depth))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, t, tokens]."""
        values = self.dropout(self.tokens(tokens))
        for block in self.blocks:
            values = block(values)
        # Tied embeddings (Press & Wolf 2017, arXiv 1608.05859).
        return linear(self.last(values), self.tokens.weight)


class _DecoderBlock(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_in, self.feed_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)
        self._heads, self._dropout = heads, dropout
        for layer in (self.attention_in, self.attention_out, self.feed_in, self.feed_out):
            is_added = layer in (self.attention_out, self.feed_out)  # outputs of 2 depth layers add up
            nn.init.normal_(layer.weight, std=_SPREAD / math.sqrt(2 * depth) if is_added else _SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, values: Tensor) -> Tensor:
        n, t, w = values.shape
        joined: Tensor = self.attention_in(self.before_attention(values))
        query, key, value = joined.view(n, t, 3, self._heads, w // self._heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(
            _turned(query), _turned(key), value, dropout_p=self._dropout if self.training else 0.0, is_causal=True
        )
        values = values + self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(n, t, w)))
        fed: Tensor = self.feed_out(self.activation(self.feed_in(self.before_feed(values))))
        added: Tensor = values + self.dropout(fed)
        return added


def _turned(values: Tensor) -> Tensor:
    t, half = values.shape[2], values.shape[3] // 2
    speeds = _LONGEST_TURN ** (-torch.arange(half, device=values.device, dtype=torch.float32) / half)
    angles = torch.arange(t, device=values.device, dtype=torch.float32)[:, None] * speeds
    cos, sin = angles.cos().to(values.dtype), angles.sin().to(values.dtype)
    first, second = values[..., :half], values[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


_DROPOUT = re.compile(r"^(?!att|activation|qa_|.*layerdrop).*drop")
"""Pattern for names of dropout probabilities in a config, except of attention weights, activations and layers."""


class TextNetwork(nn.Module):
    """Transformer encoder with pre-normalisation, pooled over tokens: int64 [n, longest] to [n, outputs]."""

    def __init__(
        self,
        *,
        vocabulary: int,
        longest: int,
        outputs: int,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
        token_dropout: float,
        pooling: str,
        meaning: object,
    ) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.places = nn.Embedding(longest, width)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width if pooling == "both" else width, outputs)
        self._token_dropout, self._pooling = token_dropout, pooling

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, outputs]."""
        tokens = _trimmed(tokens, PAD)
        present = tokens != PAD
        if self.training and self._token_dropout > 0:
            hidden = torch.rand(tokens.shape, device=tokens.device) < self._token_dropout
            tokens = torch.where(hidden & present, MASK, tokens)
        values = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        values = self.dropout(values)
        for block in self.blocks:
            values = block(values, present)
        outputs: Tensor = self.head(self.dropout(_pooled(values, present, self._pooling)))
        return outputs


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)
        self._heads = heads

    def forward(self, values: Tensor, present: Tensor) -> Tensor:
        """Return values [n, t, w]. `present`, bool [n, t], is false for padding."""
        n, t, w = values.shape
        joined: Tensor = self.attention_in(self.before_attention(values))
        query, key, value = joined.view(n, t, 3, self._heads, w // self._heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=present[:, None, None, :])
        values = values + self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(n, t, w)))
        fed: Tensor = self.dropout(self.feed(self.before_feed(values)))
        return values + fed


def _trimmed(tokens: Tensor, pad: int) -> Tensor:
    """Cut padding after the longest text, except on the meta device or in an export, whose caller pads as needed."""
    if tokens.is_meta or torch.compiler.is_exporting():
        return tokens
    ends = (tokens != pad) * torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return tokens[:, : max(1, int(ends.max()))]


def _pooled(values: Tensor, present: Tensor, pooling: str) -> Tensor:
    """Return mean or maximum over tokens, [n, w], or for "both" mean and maximum, [n, 2 w]."""
    weights = present.unsqueeze(2).to(values.dtype)
    mean = (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
    if pooling == "mean":
        return mean
    largest = values.masked_fill(~present.unsqueeze(2), -torch.inf).amax(dim=1)
    return largest if pooling == "max" else torch.cat([mean, largest], dim=1)


class CheckpointNetwork(nn.Module):
    """Published transformer in float32 with a new classifier, [n, outputs]. `dropout` None keeps its own values."""

    def __init__(self, checkpoint: str, *, outputs: int, dropout: float | None, pad: int) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModelForSequenceClassification
        from transformers.utils import logging

        logging.disable_progress_bar()
        # The user chose the checkpoint, and its code never runs.
        config = AutoConfig.from_pretrained(  # nosec B615
            checkpoint, num_labels=outputs, pad_token_id=pad, trust_remote_code=False
        )
        if dropout is not None:
            _set_dropout(config, dropout)
        network = AutoModelForSequenceClassification.from_pretrained(  # nosec B615
            checkpoint, config=config, ignore_mismatched_sizes=True, trust_remote_code=False
        )
        # The model has the file's precision, but in 16 bits small steps of the optimizer round to 0.
        self.network = network.float()
        self.network.train()  # `from_pretrained` returns evaluation mode, without dropout
        self._pad = pad

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, outputs] for tokens int64 [n, longest]."""
        tokens = _trimmed(tokens, self._pad)
        logits: Tensor = self.network(input_ids=tokens, attention_mask=(tokens != self._pad).long()).logits
        return logits


def _set_dropout(config: Any, dropout: float) -> None:
    """Set all dropout probabilities in a config but attention's, whose names differ between architectures."""
    named = [(name, value) for name, value in config.to_dict().items() if _DROPOUT.search(name)]
    names = [name for name, value in named if isinstance(value, int | float) and not isinstance(value, bool)]
    if not names:
        kind = config.model_type
        raise TaskError(
            f"dropout: found {dropout}, but the architecture {kind!r} has no dropout. Remove dropout from the space"
        )
    for name in names:
        setattr(config, name, dropout)
