"""Counter noise: the hash it claims to be, a Gumbel law, and no relation between coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.noise import draw, gumbel, loud_ids

STRIDE = 0xD1342543DE82EF95
MIX_1, MIX_2, GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    x = (x + GOLDEN) % 2**64
    x = (x ^ x >> 30) * MIX_1 % 2**64
    x = (x ^ x >> 27) * MIX_2 % 2**64
    return x ^ x >> 31


def preimage(h: int) -> int:
    """The x with splitmix64(x) == h."""
    for shift, factor in ((31, MIX_2), (27, MIX_1), (30, 1)):
        x = h
        for _ in range(64 // shift):
            x = h ^ x >> shift
        h = x * pow(factor, -1, 2**64) % 2**64
    return (h - GOLDEN) % 2**64


def noise(seed: int, position: int, token: int) -> float:
    x = splitmix64(seed ^ splitmix64(position) ^ token * STRIDE % 2**64)
    return -math.log(-math.log(((x >> 12) + 0.5) / 2**52))


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), ids=st.lists(st.integers(0, 2**31), min_size=1))
@settings(deadline=None)
def test_noise_is_the_hash_that_it_says(seed: int, position: int, ids: list[int]) -> None:
    expected = [noise(seed, position, i) for i in ids]
    np.testing.assert_allclose(gumbel(seed, position, np.array(ids)), expected, rtol=1e-12, atol=1e-14)


def test_noise_never_changes() -> None:
    """A seed promises a text: these numbers are part of the promise."""
    expected = [-0.873525895024594, 0.3781439847076996, -0.13909709166650705]
    np.testing.assert_allclose(gumbel(7, 100, np.array([0, 1, 49151], np.int32)), expected, rtol=1e-12)


@pytest.mark.parametrize(("h", "value"), [(0, -3.6038), (2**64 - 1, 36.7368)])
def test_noise_is_finite_for_every_hash(h: int, value: float) -> None:
    seed = preimage(h) ^ splitmix64(0)
    assert gumbel(seed, 0, np.array([0])) == pytest.approx([value], abs=1e-4)


def uniforms() -> Iterator[np.ndarray]:
    """Noise along ids, along positions and along seeds, as numbers that should be uniform."""
    n, ids = 4096, np.arange(4096)
    for stream in (
        gumbel(0, 0, ids),
        np.array([gumbel(3, i, ids[:1])[0] for i in range(n)]),
        np.array([gumbel(i, 3, ids[:1])[0] for i in range(n)]),
    ):
        yield np.exp(-np.exp(-stream))


def test_noise_is_uniform_along_ids_positions_and_seeds() -> None:
    for u in uniforms():
        steps = np.arange(1, u.size + 1) / u.size
        assert np.abs(np.sort(u) - steps).max() < 2.6 / math.sqrt(u.size)  # Kolmogorov-Smirnov, P < 1e-5
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(u.size)


@pytest.mark.parametrize(("seed", "position"), [(1, 0), (0, 1), (1, 1), (2**63, 0), (0, 2**20)])
def test_noise_of_other_seeds_and_positions_is_unrelated(seed: int, position: int) -> None:
    ids = np.arange(20_000)
    a, b = gumbel(0, 0, ids), gumbel(seed, position, ids)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(ids.size)
    assert not np.intersect1d(a, b).size


@pytest.mark.parametrize("least", [-10.0, -3.0, 0.0, 3.0, 9.0, math.inf])
def test_loud_ids_are_those_with_enough_noise(least: float) -> None:
    n = 40_000
    assert loud_ids(9, 12, n, least).tolist() == np.flatnonzero(gumbel(9, 12, np.arange(n)) >= least).tolist()


def test_the_loudest_possible_noise_is_found() -> None:
    seed = preimage(2**64 - 1) ^ splitmix64(5) ^ 3 * STRIDE % 2**64
    assert loud_ids(seed, 5, 10, 36.736).tolist() == [3]


@given(
    seed=st.integers(0, 1000), position=st.integers(0, 1000), n=st.integers(1, 30), spread=st.sampled_from([0, 1, 9])
)
@settings(deadline=None)
def test_draw_takes_the_largest_sum(seed: int, position: int, n: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    ids, log_p = rng.permutation(1000)[:n], rng.normal(size=n) * spread
    expected = max(range(n), key=lambda i: log_p[i] + noise(seed, position, int(ids[i])))
    assert draw(seed, position, ids, log_p) == ids[expected]


def test_equal_sums_go_to_the_lowest_id() -> None:
    twins = [preimage(h) ^ splitmix64(0) for h in (2**63, 2**63 + 1)]  # hashes that differ below the noise's bits
    ids = np.array(sorted(x * pow(STRIDE, -1, 2**64) % 2**64 for x in twins), np.uint64)
    assert np.ptp(gumbel(0, 0, ids)) == 0
    assert draw(0, 0, ids, np.zeros(2)) == draw(0, 0, ids[::-1], np.zeros(2)) == ids[0]
