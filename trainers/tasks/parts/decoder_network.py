"""A decoder-only transformer. Shapes: n sequences, t tokens of each, w width, h heads, d = w / h width of a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from trainers.tasks.parts.data_mark import DataMark

_SPREAD = 0.02
"""Standard deviation of initial weights, as in GPT-2."""
_LONGEST_TURN = 10000.0
"""Base of the angles of rotary embeddings (Su et al. 2021, arXiv 2104.09864)."""


class DecoderNetwork(nn.Module):
    """Normalisation in front, rotary embeddings, and one matrix for tokens that come in and go out.

    Input: tokens int64 [n, t]; output [n, t, tokens]: at each place the logits of the next token.
    """

    def __init__(self, *, tokens: int, width: int, depth: int, heads: int, dropout: float, meaning: object) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self.tokens = nn.Embedding(tokens, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)  # 0.02 learned a third slower on small data
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, depth, heads, dropout) for _ in range(depth))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, t, tokens]."""
        values = self.dropout(self.tokens(tokens))
        for block in self.blocks:
            values = block(values)
        # Tied embeddings (Press & Wolf 2017, arXiv 1608.05859).
        return linear(self.last(values), self.tokens.weight)


class _Block(nn.Module):
    """Causal attention and two dense layers, each added to what comes in."""

    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_in, self.feed_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)
        self._heads, self._dropout = heads, dropout
        for layer in (self.attention_in, self.attention_out, self.feed_in, self.feed_out):
            is_added = layer in (self.attention_out, self.feed_out)  # 2 depth such layers add up
            nn.init.normal_(layer.weight, std=_SPREAD / math.sqrt(2 * depth) if is_added else _SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, values: Tensor) -> Tensor:
        """Return values [n, t, w] for values of that shape."""
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
    """Return queries or keys [n, h, t, d] turned by angles that grow with their place: rotary embeddings."""
    t, half = values.shape[2], values.shape[3] // 2
    speeds = _LONGEST_TURN ** (-torch.arange(half, device=values.device, dtype=torch.float32) / half)
    angles = torch.arange(t, device=values.device, dtype=torch.float32)[:, None] * speeds
    cos, sin = angles.cos().to(values.dtype), angles.sin().to(values.dtype)
    first, second = values[..., :half], values[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
