"""Drafters by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgedec.drafters import REGISTRY, create, drafter_class, names
from edgedec.drafters.suffix import SuffixDrafter
from edgedec.errors import UnknownNameError, UsageError


def test_names_lead_to_classes_of_that_name() -> None:
    assert names() == list(REGISTRY)
    for name in names():
        assert drafter_class(name).name == name


def test_create_keeps_the_order_and_makes_new_ones() -> None:
    assert create([]) == []
    wanted = names()[::-1]
    first, second = create(wanted), create(wanted)
    assert [drafter.name for drafter in first] == wanted
    assert not {id(drafter) for drafter in first} & {id(drafter) for drafter in second}


def test_options_reach_the_drafter_of_that_name() -> None:
    options = SuffixDrafter.Options(p_min=0.25)
    assert create(["suffix"], {"suffix": options, "another": object()})[0].options is options
    assert create(["suffix"])[0].options == SuffixDrafter.Options()


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="drafter 'sufix'") as caught:
        create(["sufix"])
    assert "'suffix'" in caught.value.hint


def test_a_name_given_twice() -> None:
    with pytest.raises(UsageError, match="2 times"):
        create(["suffix", "suffix"])


def test_a_drafter_is_imported_only_when_asked_for() -> None:
    code = """
import sys
import edgedec.drafters
assert "edgedec.drafters.suffix" not in sys.modules
edgedec.drafters.create(["suffix"])
assert "edgedec.drafters.suffix" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
