from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.catalogue import DEFAULT
from edgedec.catalogue import card as card_of
from edgedec.catalogue import cards as all_cards
from edgedec.catalogue.schema import read_cards
from edgedec.errors import EdgedecError, UnknownNameError

VALID = """
name = "a"
title = "A"
family = "a"
architecture = "llama"
license = "MIT"
n_params = 1
n_ctx_train = 1

[file]
name = "a.gguf"
quantisation = "Q4_1"
size = 1
sha256 = "{}"

[hub]
repo = "o/r"
revision = "{}"
""".format("0" * 64, "0" * 40)


def test_the_shipped_cards_are_valid_and_hold_the_default() -> None:
    assert DEFAULT in [card.name for card in all_cards()]
    default = card_of(DEFAULT)
    assert default.file.name.endswith(".gguf")
    assert default.wheel is not None
    assert default.wheel.member.endswith(default.file.name)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        card_of("smollm2-135")
    assert DEFAULT in caught.value.hint


def test_a_wheel_source_is_optional(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(VALID)
    assert [(card.name, card.wheel) for card in read_cards(tmp_path)] == [("a", None)]


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('title = "A"', 'title = "A"\ncolour = "red"', "colour"),
        ('title = "A"', "", "title"),
        ("n_params = 1", 'n_params = "1"', "n_params"),
        ("size = 1", "size = 0", "size"),
        ("0" * 64, "0" * 63, "sha256"),
        ("0" * 64, "G" * 64, "sha256"),
        ('"a.gguf"', '"../a.gguf"', "name"),
        ('"o/r"', '"r"', "repo"),
        ('title = "A"', 'title = "A', "a.toml"),
    ],
)
def test_a_wrong_card_names_the_file_and_the_field(tmp_path: Path, old: str, new: str, names: str) -> None:
    assert old in VALID
    (tmp_path / "a.toml").write_text(VALID.replace(old, new))
    with pytest.raises(EdgedecError) as caught:
        read_cards(tmp_path)
    assert names in str(caught.value)
    assert "a.toml" in str(caught.value)


def test_the_file_is_called_like_the_model(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(VALID)
    with pytest.raises(EdgedecError, match=r"b\.toml describes 'a'"):
        read_cards(tmp_path)


def test_an_empty_catalogue_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EdgedecError, match="no model cards"):
        read_cards(tmp_path)


def test_an_installed_wheel_reads_its_own_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgedec.catalogue.schema as module

    (tmp_path / "edgedec" / "_models").mkdir(parents=True)
    (tmp_path / "edgedec" / "_models" / "a.toml").write_text(VALID)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "edgedec" / "catalogue" / "cards.py"))
    module.cards.cache_clear()
    try:
        assert [card.name for card in all_cards()] == ["a"]
    finally:
        module.cards.cache_clear()
