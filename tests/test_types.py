"""Impossible settings are refused where they are made, with one line that says what and one that says what to do."""

from __future__ import annotations

import itertools
import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.types import Candidates, Draft, Request, SamplingParams, Span, Verdict, add_span

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", [-0.1, 100.1, INF, -INF, NAN, "1", None], [0, 0.0, 1e-9, 1, 100]),
        ("top_k", [-1, 2**31, 1.0, "40", True, None], [0, 1, 2**31 - 1]),
        ("top_p", [0, -0.5, 1.01, NAN, INF, "1"], [1e-9, 0.5, 1]),
        ("min_p", [-0.01, 1.01, NAN, INF, "0"], [0, 0.5, 1]),
        ("repeat_penalty", [0, -1, 101, NAN, INF, "1"], [0.01, 1, 100]),
        ("presence_penalty", [-101, 101, NAN, INF, "0"], [-100, 0, 100]),
        ("frequency_penalty", [-101, 101, NAN, -INF, "0"], [-100, 0, 100]),
        ("penalty_last_n", [-2, 1.5, "64", True], [-1, 0, 10**6]),
        ("dry_multiplier", [-0.1, NAN, INF, "0"], [0, 0.8, 1e9]),
        ("dry_base", [0.99, 0, NAN, INF, "2"], [1, 1.75, 10]),
        ("dry_allowed_length", [0, -1, 2.0, "2", False], [1, 100]),
        ("dry_penalty_last_n", [-2, 0.5, "-1", True], [-1, 0, 10**6]),
        ("seed", [-1, 2**64, 1.0, "1", True, None], [0, 2**64 - 1]),
    ],
)
def test_sampling_numbers(name: str, bad: list[Any], good: list[Any]) -> None:
    for value in bad:
        with pytest.raises(UsageError) as caught:
            SamplingParams(**{name: value})
        assert str(caught.value) == f"{name} is {value!r}."
        assert caught.value.hint.startswith("Use ")
        assert caught.value.exit_code == 2
    for value in good:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_every_number_is_checked() -> None:
    numbers = {f.name for f in fields(SamplingParams) if isinstance(f.default, int | float)}
    for name in numbers:
        with pytest.raises(UsageError, match=f"^{name} is"):
            SamplingParams(**{name: "many"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ()}, "The prompt is empty."),
        ({"max_tokens": 0}, "max_tokens is 0."),
        ({"max_tokens": -5}, "max_tokens is -5."),
        ({"stop": ("",)}, "A stop string is empty."),
        ({"stop": ("a", "")}, "A stop string is empty."),
    ],
)
def test_requests(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Request(**{"prompt": (1,), **options})
    assert str(caught.value) == message
    assert caught.value.hint


def test_defaults() -> None:
    """llama.cpp's own: settings carry over."""
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.penalty_last_n, params.dry_multiplier) == (1.0, 64, 0.0)
    request = Request((1,))
    assert (request.max_tokens, request.stop, request.speculate, request.sampling) == (None, (), True, params)
    assert hash(request) == hash(Request((1,)))
    with pytest.raises(FrozenInstanceError):
        request.prompt = (2,)  # type: ignore[misc]


def test_sizes() -> None:
    assert len(Candidates("a")) == 0
    assert len(Candidates("a", [1, 2], [-1, 0], [1.0, 1.0], [(), ()])) == 2
    assert len(Draft()) == 0
    assert len(Draft((1, 2), (-1, -1), ("a",) * 2, (0.5,) * 2)) == 2
    assert Verdict((1, 2, 3), (0, 4)).n_accepted == 2


@pytest.mark.parametrize(
    ("parents", "is_chain"), [((), True), ((-1,), True), ((-1, 0, 1), True), ((-1, -1), False), ((-1, 0, 0), False)]
)
def test_chains(parents: tuple[int, ...], is_chain: bool) -> None:
    n = len(parents)
    assert Draft((1,) * n, parents, ("a",) * n, (0.5,) * n).is_chain == is_chain


@given(st.lists(st.tuples(st.integers(-1, 4), st.sampled_from("ab"))))
def test_spans(added: list[Span]) -> None:
    """Neighbours of one source are one; nothing is lost, nothing is empty."""
    spans: list[Span] = []
    for n, source in added:
        add_span(spans, n, source)
    assert "".join(source * n for n, source in spans) == "".join(source * n for n, source in added)
    assert all(n > 0 for n, _ in spans)
    assert all(a[1] != b[1] for a, b in itertools.pairwise(spans))
