"""The account: what a step may lose, and that this keeps an answer from falling behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.speculation.gate import EPSILON, Gate


def test_a_new_account_has_the_allowance() -> None:
    assert Gate().slack_ms(10.0) == pytest.approx(30.0)
    assert Gate().slack_ms(100.0) == pytest.approx(50.0)  # what a person might notice
    assert Gate().speedup == 0.0


def test_gains_and_losses() -> None:
    gate = Gate()
    gate.settle(40.0, 15.0)
    assert gate.slack_ms(10.0) == pytest.approx(30.0 + 25.0 + EPSILON * 15.0)
    assert gate.speedup == pytest.approx(40 / 15)
    gate.settle(10.0, 45.0)
    assert gate.slack_ms(10.0) == pytest.approx(30.0 - 10.0 + EPSILON * 60.0)
    assert gate.speedup == pytest.approx(50 / 60)


def test_plain_steps_earn_a_little() -> None:
    gate = Gate()
    for _ in range(100):
        gate.settle(10.0, 10.0)
    assert gate.slack_ms(10.0) == pytest.approx(30.0 + 10.0)
    assert gate.speedup == pytest.approx(1.0)


@settings(deadline=None)
@given(
    st.floats(0.1, 500),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=200),
)
def test_steps_within_the_slack_keep_the_bound(plain_ms: float, wishes: list[tuple[float, int]]) -> None:
    """(how much longer than a plain step it takes, tokens it brings); every step that is allowed may fail."""
    gate, plain, spent = Gate(), 0.0, 0.0
    for extra, n_tokens in wishes:
        extra *= plain_ms
        if extra > gate.slack_ms(plain_ms):
            extra, n_tokens = 0.0, 1
        gate.settle(n_tokens * plain_ms, plain_ms + extra)
        plain += n_tokens * plain_ms
        spent += plain_ms + extra
        assert spent <= (plain + min(3 * plain_ms, 50.0)) / (1 - EPSILON) * (1 + 1e-9)
