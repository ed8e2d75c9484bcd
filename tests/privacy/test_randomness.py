"""Known answers of the generator, keyed draws, and noise of the right law.

The laws are tested on fixed keys. A key of the operating system is drawn only where equality is tested, of 100 numbers
or of 256 bits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sfumato.privacy import Randomness
from sfumato.privacy.randomness import Draws, chacha, philox, uniforms

CPU = torch.device("cpu")


def test_known_answers_of_philox() -> None:
    for word, expected in (
        (0x00000000, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ):
        counter = torch.tensor([word])
        assert tuple(int(x) for x in philox((counter,) * 4, (word, word))) == expected


def test_known_answers_of_chacha() -> None:
    """The key stream for a key, counter and nonce of zeros, of 8 and of 20 rounds."""
    for rounds, expected in (
        (8, "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"),
        (20, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
    ):
        zero = torch.zeros(1, dtype=torch.int64)
        words = chacha((zero,) * 4, bytes(32), rounds=rounds)  # type: ignore[arg-type]
        assert words.numpy().astype("<i4").tobytes().hex().startswith(expected)


def test_a_uniform_has_52_bits_of_two_words() -> None:
    for high, low, number in ((0, 0, 0), (-1, -1, 2**52 - 1), (1, 0, 2**20), (0, -1, 2**20 - 1), (0, 1 << 12, 1)):
        words = torch.tensor([[high], [low]], dtype=torch.int32)
        assert uniforms(words).tolist() == [[(number + 0.5) / 2**52]]


def test_every_bit_of_the_key_and_of_the_counter_matters() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    plain = chacha((zero,) * 4, bytes(32))  # type: ignore[arg-type]
    for bit in range(256):
        key = (1 << bit).to_bytes(32, "little")
        changed = chacha((zero,) * 4, key) ^ plain  # type: ignore[arg-type]
        assert 150 < sum(int(word & 0xFFFFFFFF).bit_count() for word in changed.flatten().tolist()) < 362
    for word in range(4):
        for bit in range(32):
            counter = [zero, zero, zero, zero]
            counter[word] = torch.tensor([1 << bit])
            assert not torch.equal(chacha(tuple(counter), bytes(32)), plain)  # type: ignore[arg-type]


def test_a_stream_of_noise_has_a_256_bit_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def watched(counter: object, key: bytes, **options: object) -> torch.Tensor:
        keys.append(key)
        return chacha(counter, key, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("sfumato.privacy.randomness.chacha", watched)
    randomness = Randomness()
    randomness.gaussian(5, CPU, "a", 1)
    randomness.gaussian(5, CPU, "a", 2)
    randomness.coins(10, 0.5, "a", 1)
    assert len(set(keys)) == 3 and all(len(key) == 32 for key in keys)


def test_words_are_the_same_where_arrays_cannot_be_had() -> None:
    """Inside torch.func a tensor has no memory of its own, and on a GPU it has another."""
    rows = torch.tensor([3, 0xFFFFFFFF, 0, 77])
    zero = torch.zeros_like(rows)
    plain = torch.stack(philox((rows, zero, rows, zero), (0x9E3779B9, 5)))
    traced = torch.func.vmap(lambda row: torch.stack(philox((row, 0 * row, row, 0 * row), (0x9E3779B9, 5))))(rows)
    assert torch.equal(plain, traced.T)
    assert rows.tolist() == [3, 0xFFFFFFFF, 0, 77], "the counter is left as it was"


def test_manual_seed_has_no_effect() -> None:
    noises = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        noises.append(Randomness().gaussian(100, CPU, "x"))
    assert not torch.equal(*noises)


def test_a_seed_repeats_and_labels_separate() -> None:
    first, second = Randomness(1), Randomness(1)
    assert torch.equal(first.gaussian(9, CPU, "a", 1), second.gaussian(9, CPU, "a", 1))
    assert not torch.equal(second.gaussian(9, CPU, "a", 2), Randomness(1).gaussian(9, CPU, "a", 1))
    assert not torch.equal(first.gaussian(9, CPU, "ab", "c"), first.gaussian(9, CPU, "a", "bc"))
    assert not torch.equal(first.gaussian(9, CPU, "a"), Randomness(2).gaussian(9, CPU, "a"))


def test_no_noise_is_drawn_twice() -> None:
    randomness = Randomness()
    randomness.gaussian(3, CPU, "a", 1)
    with pytest.raises(RuntimeError, match="drawn before"):
        randomness.gaussian(3, CPU, "a", 1)


def test_the_noise_is_standard_normal_and_a_wrong_scale_would_be_seen() -> None:
    noise = Randomness(0).gaussian(200_001, CPU, "law").numpy()
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    for scale, fits in ((1.0, True), (1.02, False)):
        assert (stats.chi2.sf(float(np.square(scale * noise).sum()), len(noise)) > 1e-6) == fits
    # Box and Muller's two halves, and neighbours, are uncorrelated.
    half = len(noise) // 2
    assert abs(np.corrcoef(noise[:half], noise[half : 2 * half])[0, 1]) < 6 / half**0.5
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 6 / len(noise) ** 0.5


def test_coins_have_their_rate_and_ignore_how_many_others_there_are() -> None:
    randomness = Randomness(0)
    few, many = randomness.coins(1000, 0.3, "c", 1), randomness.coins(300_000, 0.3, "c", 1)
    assert torch.equal(few, many[many < 1000])
    assert stats.binomtest(len(many), 300_000, 0.3).pvalue > 1e-6
    assert stats.binomtest(len(many), 300_000, 0.31).pvalue < 1e-6
    assert len(randomness.coins(50, 1.0, "all")) == 50
    assert len(randomness.coins(0, 0.5, "none")) == 0


def test_ids_of_a_large_collection_are_sampled_by_the_same_law() -> None:
    """Blocks grow as the rate falls: rate, places, gaps, and independence of how many others there are."""
    randomness, units, rate = Randomness(0), 400_000_000, 1e-5
    found = randomness.coins(units, rate, "c", 1)
    assert torch.equal(randomness.coins(3_000_000, rate, "c", 1), found[found < 3_000_000])
    assert stats.binomtest(len(found), units, rate).pvalue > 1e-6
    assert stats.kstest(found.numpy() / units, "uniform").pvalue > 1e-6
    gaps = np.diff(found.numpy()) * rate  # geometric, which is almost exponential at this rate
    assert stats.kstest(gaps, "expon").pvalue > 1e-6 > stats.kstest(1.5 * gaps, "expon").pvalue
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 6 / len(gaps) ** 0.5


def test_sampled_ids_are_independent_within_a_step() -> None:
    """Pairs of ids at any distance, also across the border of a block, and every place of a block."""
    randomness, size, rate = Randomness(0), 3 * 4096, 0.2
    table = np.zeros((400, size), dtype=bool)
    for step in range(400):
        table[step, randomness.coins(size, rate, "c", step).numpy()] = True
    centred = (table - rate) / (rate * (1 - rate)) ** 0.5
    for distance in (1, 2, 7, 64, 4096):
        # The products are uncorrelated and have variance 1: six deviations are passed once in 500 million times.
        both = float((centred[:, :-distance] * centred[:, distance:]).sum())
        assert abs(both) < 6 * (400 * (size - distance)) ** 0.5
    # The number of samples in a step is binomial, and so is that of each id over the steps.
    assert stats.kstest(table.sum(1), stats.binom(size, rate).cdf).pvalue > 1e-6
    spread = float(np.square(table.sum(0) - 400 * rate).sum() / (400 * rate * (1 - rate)))
    assert 1e-6 < stats.chi2.cdf(spread, size) < 1 - 1e-6


def test_small_and_large_rates() -> None:
    for rate in (1e-4, 0.01, 0.9, 0.9999):
        found = Randomness(0).coins(1_000_000, rate, "c")
        assert stats.binomtest(len(found), 1_000_000, rate).pvalue > 1e-6
        assert torch.equal(found, found.unique())


def test_coins_of_two_steps_are_independent() -> None:
    randomness = Randomness(0)
    one, two = (set(randomness.coins(20_000, 0.5, "c", step).tolist()) for step in (1, 2))
    both = len(one & two)
    assert stats.binomtest(both, 20_000, 0.25).pvalue > 1e-6


def draws(rows: list[int], key: tuple[int, int] = (1, 2)) -> Draws:
    ids = torch.tensor(rows)
    return Draws(key, ids, torch.zeros_like(ids))


def test_a_rows_draws_do_not_depend_on_the_other_rows() -> None:
    alone, among = draws([7]), draws([3, 7, 9])
    for ask in (lambda d: d.normal("z", 5), lambda d: d.uniform("u", 2, 3), lambda d: d.integers("g", 10, 4)):
        assert torch.equal(ask(alone)[0], ask(among)[1])
    assert not torch.equal(among.normal("z", 5), among.normal("y", 5))
    assert torch.equal(among[1:2].normal("z", 5), alone.normal("z", 5))


def test_draws_follow_their_laws() -> None:
    many = draws(list(range(20_000)))
    assert stats.kstest(many.normal("z", 3).flatten().numpy(), "norm").pvalue > 1e-6
    assert stats.kstest(many.uniform("u", 3).flatten().numpy(), "uniform").pvalue > 1e-6
    counts = np.bincount(many.integers("g", 7, 2).flatten().numpy(), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_keys_of_rows_do_not_show_the_place_of_a_record() -> None:
    ids = torch.arange(10_000)
    first, second = (Randomness(seed).draws(ids, torch.zeros_like(ids), "x") for seed in range(2))
    assert not (first.rows == second.rows).any() and len(first.rows.unique()) == 10_000
    for bit in (0, 1, 31, 32, 63):
        ones = (first.rows >> bit) & 1
        assert stats.binomtest(int(ones.sum()), 10_000).pvalue > 1e-6
        assert stats.binomtest(int((ones ^ (ids & 1)).sum()), 10_000).pvalue > 1e-6


def test_draws_work_under_vmap() -> None:
    many = draws([1, 2, 3])

    def one(row: torch.Tensor) -> torch.Tensor:
        return Draws(many.key, row[None], torch.zeros_like(row[None])).normal("z", 4)[0]

    assert torch.equal(torch.func.vmap(one)(many.rows), many.normal("z", 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_uniform_draw_is_neither_0_nor_1(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The quantile of 1 is infinite: a record that draws it would count as zero."""
    before = torch.get_default_dtype()
    monkeypatch.setattr(Draws, "_words", lambda *_: torch.tensor([[0], [0xFFFFFFFF]]))
    try:
        torch.set_default_dtype(dtype)
        smallest, largest = Draws((0, 0), torch.arange(2), torch.zeros(2)).uniform("u", 1).flatten().tolist()
    finally:
        torch.set_default_dtype(before)
    assert 0 < smallest < 1e-7 and 1 - 1e-7 < largest < 1
