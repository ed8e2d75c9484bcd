"""What every method's configuration does with names that it does not know."""

from __future__ import annotations

import pytest

from sfumato.methods import find


def test_a_misspelled_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'sampling_rate'"):
        find("dp-lflow").configured({"samplingrate": 0.1})
