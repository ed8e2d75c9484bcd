"""What every method's configuration does: names, types, and the names that version 0.1.0 had."""

from __future__ import annotations

import pytest

from sfumato.methods import METHODS, find
from sfumato.methods.first_edition import current_parameters, renamed_parameters

LATER = {"dp-realnvp-published"}
"""Methods that version 0.1.0 did not have."""


def test_a_former_name_is_refused_with_the_present_one() -> None:
    for name in METHODS.keys() - LATER:
        method = find(name)
        known = method().parameters()
        former = {old: new for old, new in renamed_parameters(name).items() if new in known}
        assert former, name
        for old, new in former.items():
            assert old not in known, f"{old} is a present name of {name}"
            with pytest.raises(ValueError, match=f"no parameter '{old}'; it is called '{new}' now"):
                method.configured({old: 1})


def test_a_misspelled_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'sampling_rate'"):
        find("dp-lflow").configured({"samplingrate": 0.1})


def test_former_names_of_a_card_are_read_by_method() -> None:
    assert current_parameters("dpaf", {"decay": 0.9}) == {"aggregate_decay": 0.9}
    assert current_parameters("dppm", {"decay": 7.0, "steps": 3}) == {"rho": 7.0, "steps": 3}
