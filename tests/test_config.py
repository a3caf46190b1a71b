from __future__ import annotations

from typing import Any

import pytest

from edgedec.config import EngineConfig, parse_speculate
from edgedec.errors import UsageError


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("auto", ("auto",)),
        (" OFF ", ("off",)),
        ("suffix", ("suffix",)),
        ("suffix, Recycle ,", ("suffix", "recycle")),
        (["suffix", "recycle"], ("suffix", "recycle")),
        (("b", "a", "b"), ("b", "a")),
        ("auto,auto", ("auto",)),
        ("no such name", ("no such name",)),  # the registry's business
    ],
)
def test_parse_speculate(value: Any, names: tuple[str, ...]) -> None:
    assert parse_speculate(value) == names


@pytest.mark.parametrize("value", ["", " , ", [], [""], ()])
def test_no_mode(value: Any) -> None:
    with pytest.raises(UsageError, match="No speculation mode") as caught:
        parse_speculate(value)
    assert "auto" in caught.value.hint


@pytest.mark.parametrize("value", ["auto,suffix", "off,auto", ["suffix", "OFF"]])
def test_modes_stand_alone(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        parse_speculate(value)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("n_ctx", [7, 0, -1, 2**31, 4096.0, "4096", True], [None, 8, 131072]),
        ("n_batch", [0, -1, 65537, 1.5, None, "512", True], [512, 65536]),
        ("n_ubatch", [0, -1, 513, 2.0, None, "x", True], [1, 512]),
        ("n_threads", [-1, 513, 2.0, None, "2", True], [0, 1, 512]),
        ("n_gpu_layers", [-2, 10001, 0.5, None, "all", True], [-1, 0, 10000]),
    ],
)
def test_numbers(name: str, bad: list[Any], good: list[Any]) -> None:
    for value in bad:
        with pytest.raises(UsageError) as caught:
            EngineConfig(**{name: value})
        assert str(caught.value) == f"{name} is {value!r}."
        assert caught.value.hint.startswith("Use ")
    for value in good:
        assert getattr(EngineConfig(**{name: value}), name) == value


def test_a_piece_is_no_larger_than_a_batch() -> None:
    assert EngineConfig(n_batch=64, n_ubatch=64).n_ubatch == 64
    with pytest.raises(UsageError, match="n_ubatch is 65"):
        EngineConfig(n_batch=64, n_ubatch=65)


@pytest.mark.parametrize(("speculate", "mode"), [(("auto",), "auto"), (("off",), "off"), (("a", "b"), "a,b")])
def test_mode(speculate: tuple[str, ...], mode: str) -> None:
    assert EngineConfig(speculate=speculate).mode == mode
