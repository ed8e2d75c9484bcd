"""ε and δ in plain numbers are never more favourable than they are."""

from __future__ import annotations

import math

import numpy as np

from release.cards import certified
from sfumato.release import SyntheticImages
from sfumato.release.pages import card_page, render_card
from sfumato.release.plain_numbers import factor_text, level, one_in_text


def test_factors_are_rounded_up() -> None:
    for epsilon, text in [(0.0, "1"), (0.5, "1.65"), (1.0, "2.72"), (3.0, "20.1"), (10.0, "22,100"), (60, "more than")]:
        found = factor_text(epsilon)
        assert found.startswith(text)
        if epsilon < 50:
            assert float(found.replace(",", "")) >= math.exp(epsilon)


def test_probabilities_are_not_made_smaller() -> None:
    for delta, text in [(1e-5, "1 in 100,000"), (1e-6, "1 in 1,000,000"), (1.67e-6, "1 in 598,000"), (0.0, "never")]:
        found = one_in_text(delta)
        assert found == text
        if delta:
            assert 1 / float(found.removeprefix("1 in ").replace(",", "")) >= delta * (1 - 1e-9)


def test_the_badge_tells_small_from_large_epsilon() -> None:
    cards = {epsilon: certified(epsilon=epsilon) for epsilon in (1.0, 10.0, 30.0)}
    pages = {epsilon: render_card("card.html.jinja", card, picture="") for epsilon, card in cards.items()}
    for epsilon, page in pages.items():
        assert f'<span class="badge {level(epsilon).name}">' in page
    assert len({level(epsilon).name for epsilon in pages}) == 3
    assert "2.72 times" in pages[1.0] and "1 in 100,000" in pages[1.0] and "Computed by sfumato" in pages[1.0]


def test_what_a_card_holds_is_escaped() -> None:
    card = certified(classes=("<script>alert(1)</script>", "b"), command="a & b <i>", shape=(1, 4, 4))
    page = card_page(SyntheticImages(np.zeros((2, 1, 4, 4), np.uint8), np.arange(2), card), columns=1)
    assert "<script>" not in page and "a &amp; b &lt;i&gt;" in page
    assert "default-src 'none'" in page
