"""Two counter-based generators: ChaCha8 for noise and sampling, Philox4x32-10 for a loss's own draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<i4")

Key = tuple[int, int]
"""Two 32-bit words: the key of one Philox stream."""
Words = tuple[int, int] | tuple[Tensor, Tensor]
"""The same, or in a recorded graph, where a key is an input."""
Counter = tuple[Tensor, Tensor, Tensor, Tensor]
"""Four 32-bit words, held in int64 tensors."""


def philox(counter: Counter, key: Words) -> Counter:
    """Philox4x32-10 (Salmon et al., 2011): ten rounds; wrap-around products keep the right bits."""
    rounds = [[(key[half] + turn * _WEYL[half]) & WORD for half in (0, 1)] for turn in range(10)]
    try:
        w, x, y, z = (word.numpy().astype(np.uint64) for word in counter)
    except (TypeError, RuntimeError):  # on a GPU, or traced by torch.func
        a, b, c, d = counter
        for low, high in rounds:
            first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
            a, b = ((second >> 32) & WORD) ^ b ^ low, second & WORD
            c, d = ((first >> 32) & WORD) ^ d ^ high, first & WORD
        return a, b, c, d
    for low, high in rounds:  # on a CPU more than twice as fast in place
        for own, factor, other, add in ((w, 0, z, high), (y, 1, x, low)):
            own *= _MULTIPLIERS[factor]
            other ^= (own >> 32) ^ add
            own &= WORD
        w, x, y, z = x, y, z, w
    a, b, c, d = (torch.from_numpy(word.view(np.int64)) for word in (w, x, y, z))
    return a, b, c, d


def chacha(counter: Counter, key: bytes, *, rounds: int = 8) -> Tensor:
    """``[16, n]`` words of ChaCha (Bernstein, 2008) as int32: n blocks under a 256-bit key.

    The four words of ``counter`` are words 12 to 15 of the state: the block's number and the nonce.
    """
    words = np.concatenate([_CONSTANTS, np.frombuffer(key, dtype="<i4")])
    moving = torch.stack([((word + 0x80000000) & WORD) - 0x80000000 for word in counter]).int()  # as signed numbers
    start = torch.cat([torch.from_numpy(words).to(moving.device)[:, None].expand(12, moving.shape[1]), moving])
    if start.device.type == "cpu":  # numpy starts an operation several times faster than torch
        state = start.numpy().view(np.uint32)
        return torch.from_numpy((np.concatenate(_rounds(state, np.concatenate, rounds)) + state).view(np.int32))
    return torch.cat(_rounds(start, torch.cat, rounds)) + start


def _rounds(start: Any, join: Any, rounds: int) -> list[Any]:
    """The rows of the state after the rounds, for an array of unsigned or a tensor of signed words."""
    a, b, c, d = (start[row : row + 4] + 0 for row in (0, 4, 8, 12))
    for number in range(rounds):
        for left, right, target, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            left += right
            target ^= left
            low = target >> (32 - turn)
            low &= (1 << turn) - 1  # a signed shift has copied the sign
            target <<= turn
            target |= low
        # From columns to diagonals and back.
        shifts = (1, 2, 3) if number % 2 == 0 else (3, 2, 1)
        b, c, d = (join([row[by:], row[:by]]) for row, by in zip((b, c, d), shifts, strict=True))
    return [a, b, c, d]


def uniforms(words: Tensor) -> Tensor:
    """``[2k, n]`` words as ``[k, n]`` uniforms on (0, 1) in float64, of 52 bits each, centred."""
    high, low = (words.view(-1, 2, words.shape[1])[:, half].long() & WORD for half in (0, 1))
    return ((high << 20 | low >> 12).double() + 0.5) / 2.0**52
