from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bench import device
from edgedec.bench.device import Device, limit
from edgedec.errors import UnknownNameError, UsageError
from tests.bench.lab import FLAT, STAIRS, STEEP, measured, plain


def test_between_two_widths_a_straight_line_and_then_in_proportion() -> None:
    assert [STAIRS.ms(n) for n in (1, 2, 3, 4, 5, 6, 7, 8)] == [10, 20, 20, 20, 50, 60, 70, 80]
    assert STAIRS.ms(12) == 120
    assert STAIRS.widest == 8
    only = Device("one", "", "", {1: 7.0})
    assert [only.ms(n) for n in (1, 2, 10)] == [7, 14, 70]


def test_the_limit_of_simple_curves() -> None:
    cases = [measured(plain=plain(32)), measured(1, plain=plain(64))]
    assert limit(FLAT, cases, 32) == pytest.approx(32)
    assert limit(FLAT, cases, 8) == pytest.approx(8)
    assert limit(STEEP, cases, 32) == pytest.approx(1.0)
    assert limit(STAIRS, cases, 32) == pytest.approx(2.0)
    assert limit(FLAT, [], 32) == 0.0
    assert limit(FLAT, [measured(plain=plain(0))], 32) == 0.0


def test_a_short_answer_has_a_lower_limit() -> None:
    assert limit(FLAT, [measured(plain=plain(3))], 32) == pytest.approx(3.0)
    assert limit(STAIRS, [measured(plain=plain(6))], 32) == pytest.approx(60 / 40)


def test_the_limit_does_not_look_beyond_the_curve() -> None:
    narrow = Device("narrow", "", "", {1: 10.0, 2: 10.0})
    assert limit(narrow, [measured(plain=plain(64))], 32) == pytest.approx(2.0)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.integers(2, 9), st.floats(1.0, 50.0), max_size=4), st.integers(1, 14), st.integers(1, 9))
def test_the_limit_is_the_best_of_all_ways_to_cut_an_answer(cost: dict[int, float], n: int, widest: int) -> None:
    curve = Device("x", "", "", dict(sorted({1: 5.0, **cost}.items())))

    @cache
    def best(left: int) -> float:
        widths = range(1, min(left, widest, curve.widest) + 1)
        return min(curve.ms(k) + best(left - k) for k in widths) if left else 0.0

    assert limit(curve, [measured(plain=plain(n))], widest) == pytest.approx(n * 5.0 / best(n))


def test_the_shipped_curves() -> None:
    names = device.shipped()
    assert len(names) >= 4
    for name in names:
        curve = device.load(name)
        assert curve.name == name
        assert len(curve.source) > 20, "where the numbers come from"
        assert list(curve.cost_ms) == sorted(curve.cost_ms)
        assert curve.cost_ms[1] == min(curve.cost_ms.values())
    assert "assumed" in device.load("laptop-8core-q4").source


def test_a_curve_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    entry = {"name": "mine", "description": "my laptop", "source": "measured", "cost_ms": {"8": 30, "1": 20.5}}
    path.write_text(json.dumps(entry), encoding="utf-8")
    assert device.load(str(path)) == Device("mine", "my laptop", "measured", {1: 20.5, 8: 30.0})


def test_names_that_are_no_device(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="cuda-34b") as caught:
        device.load("cuda-34b")
    assert "'cuda-34b-q8_0'" in caught.value.hint
    with pytest.raises(UsageError, match="cannot be read"):
        device.load(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not a device"),
        ("[]", "is not a device"),
        ('{"name": "x"}', "is not a device"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {"one": 1}}', "is not a device"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": [1, 2]}', "is not a device"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {}}', "impossible costs"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {"2": 5}}', "impossible costs"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {"1": 0}}', "impossible costs"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {"1": 5, "0": 5}}', "impossible costs"),
        ('{"name": "x", "description": "", "source": "", "cost_ms": {"1": NaN}}', "impossible costs"),
    ],
)
def test_files_that_are_no_device(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=problem):
        device.load(str(path))
