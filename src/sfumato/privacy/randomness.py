"""The one place where noise and private-side draws come from.

A run has one 256-bit key from the operating system. Keyed BLAKE2b turns (key, label) into the key of a stream, and
Philox4x32-10 (Salmon et al., 2011), a counter-based generator, expands it. Two things follow. ``torch.manual_seed``
has no say in any of it. And a draw is addressed rather than taken in turn: the coin, latent or group label of unit i
in step t is a function of (key, t, block, i), so taking another unit out of the data changes no draw of unit i.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DESCRIPTION = "Philox4x32-10, keyed by BLAKE2b from 256 bits of the operating system"

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_CACHED = 1 << 15  # numbers of a piece that a processor's cache holds

Key = tuple[int, int]
"""Two 32-bit words: the key of one Philox stream."""


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Key) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds over four 32-bit counter words, held in int64 tensors; wrap-around products keep the right bits."""
    rounds = [[(word + turn * weyl) & _WORD for word, weyl in zip(key, _WEYL, strict=True)] for turn in range(10)]
    try:
        w, x, y, z = (word.numpy().astype(np.uint64) for word in counter)
    except (TypeError, RuntimeError):  # on a GPU, or traced by torch.func
        a, b, c, d = counter
        for low, high in rounds:
            first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
            a, b = ((second >> 32) & _WORD) ^ b ^ low, second & _WORD
            c, d = ((first >> 32) & _WORD) ^ d ^ high, first & _WORD
        return a, b, c, d
    for low, high in rounds:  # a processor is more than twice as fast in place
        for own, factor, other, add in ((w, 0, z, high), (y, 1, x, low)):
            own *= _MULTIPLIERS[factor]
            other ^= (own >> 32) ^ add
            own &= _WORD
        w, x, y, z = x, y, z, w
    a, b, c, d = (torch.from_numpy(word.view(np.int64)) for word in (w, x, y, z))
    return a, b, c, d


def _box_muller(uniform: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.sqrt(-2.0 * torch.log(uniform))
    turn = (2.0 * math.pi) * angle
    return radius * torch.cos(turn), radius * torch.sin(turn)


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of a batch, each row's a function of its own id (``rows``) and draw number.

    A loss asks by name, ``random.normal("latent", 20)``: the same name gives the same numbers again, another name
    gives independent ones, however the batch is cut. The first dimension of every answer is the batch.
    """

    key: Key
    rows: Tensor
    draw: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Tensor) -> Draws:
        return Draws(self.key, self.rows[index], self.draw[index])

    def _words(self, name: str, count: int) -> Tensor:
        """``[rows, count]`` 32-bit words."""
        blocks = -(-count // 4)
        position = torch.arange(blocks, device=self.rows.device).expand(len(self.rows), blocks)
        label = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
        rows, draw = ((own & _WORD)[:, None].expand_as(position) for own in (self.rows, self.draw))
        words = philox((position, rows, draw, torch.full_like(position, label)), self.key)
        return torch.stack(words, dim=-1).flatten(1)[:, :count]

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Uniform on (0, 1), ``[rows, *shape]``, in torch's default dtype."""
        # 24 bits, centred: neither 0 nor 1 can come up in float32.
        bits = (self._words(name, math.prod(shape)) >> 8).to(torch.get_default_dtype())
        return ((bits + 0.5) / 2.0**24).view(-1, *shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        """Standard normal, ``[rows, *shape]``, in torch's default dtype."""
        count = math.prod(shape)
        pairs = self.uniform(name, 2, -(-count // 2))
        return torch.cat(_box_muller(pairs[:, 0], pairs[:, 1]), dim=1)[:, :count].view(-1, *shape)

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        """Uniform on 0..high-1, ``[rows, *shape]``; the bias of the multiply-shift is below high / 2^32."""
        words = self._words(name, math.prod(shape))
        return ((words * high) >> 32).view(-1, *shape)


class Randomness:
    """The run's key and the streams derived from it. ``seed`` fixes the key: for tests, and the card then says so."""

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._spent: set[Key] = set()
        self._key = os.urandom(32) if seed is None else hashlib.blake2b(str(seed).encode(), digest_size=32).digest()

    def _stream(self, *label: str | int) -> Key:
        # Lengths are part of the message: ("ab", "c") and ("a", "bc") are different streams.
        message = b"".join(len(p).to_bytes(4, "little") + p for p in (str(part).encode() for part in label))
        word = hashlib.blake2b(message, key=self._key, digest_size=8).digest()
        return int.from_bytes(word[:4], "little"), int.from_bytes(word[4:], "little")

    def public_seed(self) -> int:
        """A seed for torch's global generator, which draws what hides nothing: initial weights, latents, fakes."""
        low, high = self._stream("public")
        return low | (high & 0x7FFFFFFF) << 32

    def draws(self, rows: Tensor, draw: Tensor, *label: str | int) -> Draws:
        """Private-side draws for these row ids, in the stream of this label."""
        return Draws(self._stream("draws", *label), rows, draw)

    def coins(self, units: int, rate: float, *label: str | int, device: str = "cpu") -> Tensor:
        """Ids of the units whose independent coin came up; unit i's coin does not depend on how many others exist."""
        key = self._stream("coins", *label)
        chosen, size = [], _CACHED if device == "cpu" else max(1, units)
        for start in range(0, units, size):
            ids = torch.arange(start, min(units, start + size), device=device)
            uniform = Draws(key, ids, torch.zeros_like(ids))._words("coin", 2)
            # 53 bits of the two words decide, so that the rate holds to 1e-16.
            value = ((uniform[:, 0] << 21) | (uniform[:, 1] >> 11)).double() / 2.0**53
            chosen.append(ids[value < rate])
        return torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.int64, device=device)

    def gaussian(self, count: int, device: torch.device, *label: str | int) -> Tensor:
        """THE noise: ``count`` standard normals in float64. A label serves once, for the same noise twice cancels."""
        key = self._stream("noise", *label)
        if key in self._spent:
            raise RuntimeError(f"noise for {label} was drawn before; under one noise two answers show their difference")
        self._spent.add(key)
        pairs = -(-count // 2)
        noise = torch.empty(2, pairs, dtype=torch.float64, device=device)
        size = _CACHED if noise.device.type == "cpu" else max(1, pairs)  # a GPU takes all at once
        for start in range(0, pairs, size):
            position = torch.arange(start, min(pairs, start + size), device=device)
            zero = torch.zeros_like(position)
            a, b, c, d = philox((position & _WORD, position >> 32, zero, zero), key)
            uniform = (((a << 20) | (b >> 12)).double() + 0.5) / 2.0**52
            angle = ((c << 20) | (d >> 12)).double() / 2.0**52
            noise[0, start : start + size], noise[1, start : start + size] = _box_muller(uniform, angle)
        return noise.flatten()[:count]
