"""The one place where noise and private draws come from.

A run has one 256-bit key from the operating system. Keyed BLAKE2b turns (key, label) into the key of a stream. Noise
and Poisson sampling come from ChaCha8 under 256-bit keys; the draws that a loss asks for, which nobody sees, from
Philox4x32-10. ``torch.manual_seed`` has no effect on any of it. A draw is addressed rather than taken in turn: whether
unit i is in the batch of step t, and its latents, are a function of (key, t, block, i), so that removing another unit
from the collection changes no draw of unit i.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
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


DESCRIPTION = (
    "noise and sampling from ChaCha8 under 256-bit keys, draws of a loss from Philox4x32-10, "
    "keyed by BLAKE2b from 256 bits of the operating system"
)

_CACHED = 1 << 12  # ChaCha blocks that a processor's cache holds
_FEWEST_IDS = 1 << 12  # of one block of the id space
_EXPECTED = 16  # ids that a block is expected to contribute, at least
_ID_BLOCKS = 1 << 10  # blocks of the id space that are sampled at once


def _box_muller(uniform: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.sqrt(-2.0 * torch.log(uniform))
    turn = (2.0 * math.pi) * angle
    return radius * torch.cos(turn), radius * torch.sin(turn)


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of a batch, each row's a function of its own key (``rows``) and draw number.

    A loss asks by name, ``random.normal("latent", 20)``: the same name gives the same numbers again, another name
    gives independent ones, however the batch is divided. The first dimension of every answer is the batch. A row's key
    is a secret function of its record's id: it says nothing about the record's place in the collection.
    """

    key: Key
    rows: Tensor
    draw: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Tensor) -> Draws:
        return replace(self, rows=self.rows[index], draw=self.draw[index])

    def _positions(self, count: int) -> Tensor:
        return torch.arange(count, device=self.rows.device)

    def _named_key(self, name: str) -> Words:
        return key_of(self.key, name)

    def _words(self, name: str, count: int) -> Tensor:
        """``[rows, count]`` 32-bit words."""
        blocks = -(-count // 4)
        position = self._positions(blocks).expand(len(self.rows), blocks)
        low, high, draw = ((own & WORD)[:, None].expand_as(position) for own in (self.rows, self.rows >> 32, self.draw))
        words = philox((position, low, high, draw), self._named_key(name))
        return torch.stack(words, dim=-1).flatten(1)[:, :count]

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Uniform on (0, 1), ``[rows, *shape]``, in torch's default dtype."""
        # 24 bits, centred, so that 0 does not come up; in float32 the largest would be rounded to 1.
        bits = (self._words(name, math.prod(shape)) >> 8).to(torch.get_default_dtype())
        return ((bits + 0.5) / 2.0**24).clamp(max=1.0 - 2.0**-24).view(-1, *shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        """Standard normal, ``[rows, *shape]``, in torch's default dtype."""
        count = math.prod(shape)
        pairs = self.uniform(name, 2, -(-count // 2))
        return torch.cat(_box_muller(pairs[:, 0], pairs[:, 1]), dim=1)[:, :count].view(-1, *shape)

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        """Uniform on 0..high-1, ``[rows, *shape]``; the bias of the multiply-shift is below high / 2^32."""
        words = self._words(name, math.prod(shape))
        return ((words * high) >> 32).view(-1, *shape)


def key_of(key: Key, name: str) -> Key:
    """The key of one name's numbers within a stream."""
    secret = b"".join(word.to_bytes(4, "little") for word in key)
    return _words_of(hashlib.blake2b(name.encode(), key=secret, digest_size=8).digest())


def _words_of(digest: bytes) -> Key:
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


class Randomness:
    """The run's key and the streams derived from it. ``seed`` fixes the key: for tests, and the card then says so.

    ``key`` is that of an earlier run, to compute its answers again; like a seeded run, that has no guarantee.
    Where several processes train together, ``share`` hands every one of them the key of the first.
    """

    def __init__(
        self, seed: int | None = None, *, key: bytes | None = None, share: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.seeded = seed is not None or key is not None
        self._used: set[bytes] = set()
        if key is None:
            key = os.urandom(32) if seed is None else hashlib.blake2b(str(seed).encode(), digest_size=32).digest()
        self._key = key if share is None else share(key)

    def _derived(self, *label: str | int) -> bytes:
        """The 256-bit key of a stream."""
        # Lengths are part of the message: ("ab", "c") and ("a", "bc") are different streams.
        message = b"".join(len(p).to_bytes(4, "little") + p for p in (str(part).encode() for part in label))
        return hashlib.blake2b(message, key=self._key, digest_size=32).digest()

    def _stream(self, *label: str | int) -> Key:
        return _words_of(self._derived(*label))

    def public_seed(self) -> int:
        """A seed for torch's global generator, which draws initial weights, latents and fakes: nothing private."""
        low, high = self._stream("public")
        return low | (high & 0x7FFFFFFF) << 32

    def draws(self, ids: Tensor, draw: Tensor, *label: str | int) -> Draws:
        """Draws for the records of these ids, in the stream of this label."""
        zero = torch.zeros_like(ids)
        low, high, _, _ = philox((ids & WORD, ids >> 32, zero, zero), self._stream("records"))
        return Draws(self._stream("draws", *label), low | high << 32, draw)

    def coins(self, units: int, rate: float, *label: str | int) -> Tensor:
        """Those of the ids 0..units-1 that are in the sample: each with probability ``rate``, independently.

        The gaps between sampled ids are geometric, drawn for blocks of the id space whose size follows from the rate,
        so that the work is proportional to the sample.

        Guarantee. Whether id i is in the sample depends on the key, the label and i alone: neither on ``units`` nor on
        which ids exist.
        """
        if rate >= 1:
            return torch.arange(units)
        key = self._derived("coins", *label)
        size = _block_size(rate)
        found = [torch.zeros(0, dtype=torch.int64)]
        for start in range(0, -(-units // size), _ID_BLOCKS):
            blocks = torch.arange(start, min(-(-units // size), start + _ID_BLOCKS))
            places = _places(key, blocks, size, rate)
            ids = (blocks[:, None] * size + places)[places < size]
            found.append(ids[ids < units])
        return torch.cat(found)

    def gaussian(self, count: int, device: torch.device, *label: str | int) -> Tensor:
        """The noise of the mechanism: ``count`` standard normals in float64.

        Guarantee. They are functions of the key and the label, and each label is accepted once.
        """
        key = self._derived("noise", *label)
        if key in self._used:
            raise RuntimeError(f"noise for {label} was drawn before; two answers under one noise show their difference")
        self._used.add(key)
        blocks = -(-count // 8)
        noise = torch.empty(8, blocks, dtype=torch.float64, device=device)
        size = _CACHED if noise.device.type == "cpu" else max(1, blocks)  # a GPU takes all at once
        for start in range(0, blocks, size):
            number = torch.arange(start, min(blocks, start + size), device=device)
            zero = torch.zeros_like(number)
            pairs = uniforms(chacha((number & WORD, number >> 32, zero, zero), key))
            noise[:4, start : start + size], noise[4:, start : start + size] = _box_muller(pairs[:4], pairs[4:])
        return noise.flatten()[:count]


def _block_size(rate: float) -> int:
    """Ids of a block, a power of two: as many as give some sampled ids, and no more than there can be (2^32)."""
    return max(_FEWEST_IDS, 1 << math.ceil(math.log2(min(_EXPECTED / rate, 2.0**32))))


def _places(key: bytes, blocks: Tensor, size: int, rate: float) -> Tensor:
    """``[blocks, n]`` increasing places in each block of ids; those of ``size`` and more are outside of it."""
    expected = rate * size
    width = -(-int(expected + 4.0 * math.sqrt(expected) + 4.0) // 8)
    while True:
        number = torch.arange(width).repeat(len(blocks))
        nonce = blocks.repeat_interleave(width)
        words = chacha((number, nonce & WORD, nonce >> 32, torch.zeros_like(nonce)), key)
        uniform = uniforms(words).T.reshape(len(blocks), 8 * width)
        gaps = (torch.log(uniform) / math.log1p(-rate)).clamp(max=float(size)).long()
        places = (gaps + 1).cumsum(1) - 1
        if bool((places[:, -1] >= size).all()):
            return places
        width *= 2  # rare: the numbers drawn so far come up again, followed by more
