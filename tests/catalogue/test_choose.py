from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.catalogue.choose import matching, models_in

NAMES = [
    "README.md",
    "tiny-Q4_K_M.gguf",
    "tiny-Q4_K_S.gguf",
    "tiny-UD-Q4_K_XL.gguf",
    "tiny.IQ4_XS.gguf",
    "tiny_q8_0.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("tiny-Q4_K_M.gguf", ["tiny-Q4_K_M.gguf"]),
        ("Q4_K_M", ["tiny-Q4_K_M.gguf"]),
        ("q4_k_m", ["tiny-Q4_K_M.gguf"]),
        ("Q8_0", ["tiny_q8_0.gguf"]),
        ("Q4_K_XL", ["tiny-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["tiny-UD-Q4_K_XL.gguf"]),
        ("IQ4_XS", ["tiny.IQ4_XS.gguf"]),
        ("Q4_XS", []),
        ("Q4_K", []),
        ("Q4_K_M.gguf.part", []),
        (".*", []),
        ("tiny", ["tiny-Q4_K_M.gguf", "tiny-Q4_K_S.gguf", "tiny-UD-Q4_K_XL.gguf", "tiny.IQ4_XS.gguf"]),
    ],
)
def test_a_name_or_a_quantisation(wanted: str, found: list[str]) -> None:
    assert matching(models_in(NAMES), wanted) == found


def test_the_whole_name_wins_over_the_last_part_of_it() -> None:
    names = ["a.gguf", "sub/a.gguf", "other/b.gguf"]
    assert matching(names, "a.gguf") == ["a.gguf"]
    assert matching(names, "sub/a.gguf") == ["sub/a.gguf"]
    assert matching(names, "b.gguf") == ["other/b.gguf"]


def test_a_quantisation_may_name_the_folder() -> None:
    assert matching(["Q4_K_M/tiny.gguf", "Q8_0/tiny.gguf"], "Q8_0") == ["Q8_0/tiny.gguf"]


def test_what_is_no_language_model_is_left_out() -> None:
    assert list(models_in(["mmproj-tiny-F16.gguf", "tiny.imatrix.gguf", "tiny.gguf", "tiny.safetensors"])) == [
        "tiny.gguf"
    ]


@settings(deadline=None)
@given(n=st.integers(1, 30), missing=st.integers(1, 60), order=st.randoms(use_true_random=False))
def test_parts_belong_together_and_none_may_be_missing(n: int, missing: int, order: object) -> None:
    parts = [f"Q8_0/big-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
    shuffled = [*parts, "small.gguf"]
    order.shuffle(shuffled)
    assert models_in(shuffled) == {parts[0]: parts, "small.gguf": ["small.gguf"]}
    if missing <= n:
        shuffled.remove(parts[missing - 1])
        assert models_in(shuffled) == {"small.gguf": ["small.gguf"]}
