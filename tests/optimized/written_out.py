"""The drafters written out in float64, token by token and head by head, from their weights and the target's taps.

Nothing of the reference cycle is called: an error that is made in every run of its code, and so in both sides of a
comparison of two runs, shows against this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Drafts = tuple[list[int], Tensor]
"""Tokens [K] and logits [K, vocab]."""


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """x [n] over its root mean square, times weight [n]."""
    return x / math.sqrt(float((x * x).mean()) + 1e-6) * weight.double()


def times(weight: Tensor, x: Tensor) -> Tensor:
    """The matrix [m, n] times x [n]."""
    return weight.double() @ x


def mlp(layer: Any, x: Tensor) -> Tensor:
    """SwiGLU; the gate's rows come first."""
    wide = times(layer.mlp.gate_up, x)
    gate, up = wide[: len(wide) // 2], wide[len(wide) // 2 :]
    return times(layer.mlp.down, gate / (1 + (-gate).exp()) * up)


def softmax(scores: list[float]) -> list[float]:
    """Shares that add up to 1."""
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def temperature(rope: Any) -> float:
    """YaRN's mscale."""
    return 1.0 if rope.factor == 1 else 1.0 + math.log(rope.factor) / 10


def angles(rope: Any, size: int, position: int) -> list[float]:
    """The angle of each of the size / 2 pairs: YaRN slows those down that turn seldom within the original context."""
    found = []
    for pair in range(size // 2):
        speed = 1 / rope.theta ** (2 * pair / size)
        if rope.factor != 1:
            ends = []
            for turns in (rope.beta_fast, rope.beta_slow):
                length = rope.original_context / (2 * math.pi * turns)
                ends.append(size / 2 * math.log(length) / math.log(rope.theta))
            if rope.truncate:
                ends = [math.floor(ends[0]), math.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], size - 1)
            slow = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
            speed *= 1 - slow + slow / rope.factor
        found.append(position * speed)
    return found


def turned(x: Tensor, pairs: Callable[[int], tuple[int, int]], turns: list[float], scale: float = 1.0) -> Tensor:
    """x [n] with the two numbers at `pairs`(i) turned by turns[i] and scaled; all others as they are."""
    out = x.clone()
    for index, turn in enumerate(turns):
        a, b = pairs(index)
        out[a] = scale * (x[a] * math.cos(turn) - x[b] * math.sin(turn))
        out[b] = scale * (x[b] * math.cos(turn) + x[a] * math.sin(turn))
    return out


def context_of(drafter: Any, taps: Tensor) -> list[Tensor]:
    """The drafter's view of each context token, of its taps [n, taps * hidden]."""
    return [norm(times(drafter.fc, tap.double()), drafter.hidden_norm) for tap in taps]


def block_of(settings: Any, embedding: Tensor, bonus: int, size: int) -> list[Tensor]:
    """The newest token and masks."""
    return [embedding[bonus].double()] + [embedding[settings.geometry.mask_token].double() for _ in range(size - 1)]


def dflash(settings: Any, drafter: Any, taps: Tensor, following: list[int]) -> Drafts:
    """What a DFlash drafter says after a context with these taps, `following` being the token behind each of it."""
    shape, count = settings.geometry.dflash, settings.draft_length
    context, stream = context_of(drafter, taps), block_of(settings, drafter.target.embedding, following[-1], count + 1)
    for index, layer in enumerate(drafter.layers):
        normed = [norm(x, layer.attention_norm) for x in stream]
        for token, answer in enumerate(_dflash_attention(shape, index, layer, context, normed)):
            stream[token] = stream[token] + times(layer.output, answer)
            stream[token] = stream[token] + mlp(layer, norm(stream[token], layer.mlp_norm))
    logits = torch.stack([times(drafter.target.head, norm(x, drafter.norm)) for x in stream[1:]])
    return [int(row.argmax()) for row in logits], logits


def _dflash_attention(shape: Any, index: int, layer: Any, context: list[Tensor], block: list[Tensor]) -> list[Tensor]:
    """Of each block token, all heads side by side."""
    width, half = shape.head_dim, int(shape.head_dim * shape.rope.partial) // 2
    window, scale = shape.windows[index % len(shape.windows)], temperature(shape.rope)

    def head(x: Tensor, number: int) -> Tensor:
        return times(layer.qkv[number * width : (number + 1) * width], x)

    def rotated(x: Tensor, weight: Tensor, position: int) -> Tensor:
        turns = angles(shape.rope, 2 * half, position)
        return turned(norm(x, weight), lambda pair: (pair, pair + half), turns, scale)

    seen, first = [], len(context)
    keys = [
        [rotated(head(x, shape.heads + kv), layer.norms.key, at) for at, x in enumerate(context + block)]
        for kv in range(shape.kv_heads)
    ]
    values = [[head(x, shape.heads + shape.kv_heads + kv) for x in context + block] for kv in range(shape.kv_heads)]
    for at, x in enumerate(block, first):
        last = at if shape.causal_windows and window is not None else first + len(block) - 1
        columns = [column for column in range(last + 1) if window is None or at - column < window]
        answers = []
        for number in range(shape.heads):
            kv = number // (shape.heads // shape.kv_heads)
            query = rotated(head(x, number), layer.norms.query, at)
            scores = [float(query @ keys[kv][column]) / math.sqrt(width) for column in columns]
            shares = softmax([*scores, float(layer.sinks[number])] if shape.sinks else scores)
            answers.append(sum(share * values[kv][column] for share, column in zip(shares, columns, strict=False)))
        seen.append(torch.cat(answers))
    return seen


def dspark(settings: Any, drafter: Any, taps: Tensor, following: list[int]) -> Drafts:
    """What a DSpark drafter says: a block without a window, then the Markov chain, token by token."""
    shape, count = settings.geometry.dspark, settings.draft_length
    context, stream = context_of(drafter, taps), block_of(settings, drafter.target.embedding, following[-1], count)
    size = shape.latent + shape.rope_dim
    for index, layer in enumerate(drafter.layers):
        normed = [norm(x, layer.attention_norm) for x in stream]
        matrix = drafter.latent_matrix[index * size : (index + 1) * size]
        for token, answer in enumerate(_mla(shape, matrix, layer, context, normed)):
            stream[token] = stream[token] + times(layer.output, answer)
            stream[token] = stream[token] + mlp(layer, norm(stream[token], layer.mlp_norm))
    tokens, logits, previous = [], [], following[-1]
    for x in stream:
        bias = times(drafter.markov_out, drafter.markov_in[previous].double())
        logits.append(times(drafter.target.head, norm(x, drafter.norm)) + bias)
        previous = int(logits[-1].argmax())
        tokens.append(previous)
    return tokens, torch.stack(logits)


def _mla(shape: Any, matrix: Tensor, layer: Any, context: list[Tensor], block: list[Tensor]) -> list[Tensor]:
    """Keys and values of every head made of the latents, and one softmax over the context and the whole block."""
    wide = shape.nope_dim + shape.rope_dim

    def rotated(x: Tensor, position: int) -> Tensor:
        return turned(x, lambda pair: (2 * pair, 2 * pair + 1), angles(shape.rope, shape.rope_dim, position))

    latents, turning = [], []
    for at, x in enumerate(context + block):
        raw = times(matrix, x)
        latents.append(norm(raw[: shape.latent], layer.latent_norm))
        turning.append(rotated(raw[shape.latent :], at))
    seen = []
    for at, x in enumerate(block, len(context)):
        answers = []
        for number in range(shape.heads):
            query = times(layer.query[number * wide : (number + 1) * wide], x)
            query = torch.cat((query[: shape.nope_dim], rotated(query[shape.nope_dim :], at)))
            keys = [torch.cat((times(layer.key_up[number], a), b)) for a, b in zip(latents, turning, strict=True)]
            scale = temperature(shape.rope) ** 2 / math.sqrt(wide)
            shares = softmax([float(query @ key) * scale for key in keys])
            values = [times(layer.value_up[number], latent) for latent in latents]
            answers.append(sum(share * value for share, value in zip(shares, values, strict=True)))
        seen.append(torch.cat(answers))
    return seen


def eagle(settings: Any, drafter: Any, taps: Tensor, following: list[int]) -> Drafts:
    """What an EAGLE drafter says: of each token behind a feature, its own among them, one after another."""
    shape, embedding = settings.geometry, drafter.target.embedding
    features, words = context_of(drafter, taps), list(following)
    logits: list[Tensor] = []
    while len(logits) < settings.draft_length:
        x = [
            torch.cat((norm(embedding[word].double(), drafter.token_norm), norm(feature, drafter.feature_norm)))
            for word, feature in zip(words, features, strict=True)
        ]
        stream = features[-1] + times(drafter.output, _decoder_attention(shape, drafter, x))
        stream = stream + mlp(drafter, norm(stream, drafter.mlp_norm))
        logits.append(times(drafter.target.head, norm(stream, drafter.norm)))
        features.append(stream)
        words.append(int(logits[-1].argmax()))
    return words[len(following) :], torch.stack(logits)


def _decoder_attention(shape: Any, drafter: Any, x: list[Tensor]) -> Tensor:
    """Of the last of x, all heads side by side."""
    width, half = shape.head_dim, int(shape.head_dim * shape.rope.partial) // 2

    def head(position: int, number: int) -> Tensor:
        return times(drafter.qkv[number * width : (number + 1) * width], x[position])

    def rotated(position: int, number: int, weight: Tensor) -> Tensor:
        turns = angles(shape.rope, 2 * half, position)
        return turned(norm(head(position, number), weight), lambda pair: (pair, pair + half), turns)

    answers = []
    for number in range(shape.heads):
        kv, last = shape.heads + number // (shape.heads // shape.kv_heads), len(x) - 1
        query = rotated(last, number, drafter.norms.query)
        keys = [rotated(position, kv, drafter.norms.key) for position in range(len(x))]
        shares = softmax([float(query @ key) / math.sqrt(width) for key in keys])
        values = [head(position, kv + shape.kv_heads) for position in range(len(x))]
        answers.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    return torch.cat(answers)
