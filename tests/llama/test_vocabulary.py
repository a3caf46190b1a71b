"""What a vocabulary is called, and models of which nothing else is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.errors import ModelFormatError
from edgedec.llama.fake import FakeModel
from edgedec.llama.model import LlamaModel
from tests.tiny_gguf import write_text_model


def vocabulary(path: Path, vocab_only: bool = True) -> str:
    model = LlamaModel(path, vocab_only=vocab_only)
    name = model.vocabulary
    model.close()
    return name


def test_models_of_one_vocabulary_share_its_name(tiny: Path, tmp_path: Path) -> None:
    name = vocabulary(tiny)
    assert len(name) == 24
    assert name.isalnum()
    assert vocabulary(tiny, vocab_only=False) == name
    assert vocabulary(write_text_model(tmp_path / "other.gguf", "gemma3", seed=5)) == name


def test_another_word_makes_another_vocabulary(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    assert "▁blue".encode() in content
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(content.replace("▁blue".encode(), "▁grue".encode()))
    assert vocabulary(changed) != vocabulary(tiny)


def test_without_weights_there_is_still_a_tokenizer(tiny: Path) -> None:
    model, whole = LlamaModel(tiny, vocab_only=True), LlamaModel(tiny)
    for text in ("Why is the sky blue?", "é€🦊\n"):
        assert model.tokenize(text) == whole.tokenize(text)
    assert (model.n_vocab, model.name, model.fingerprint) == (whole.n_vocab, whole.name, whole.fingerprint)
    model.close()
    whole.close()


def test_a_damaged_file_is_refused_without_weights_too(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(tiny.read_bytes()[:4000])
    with pytest.raises(ModelFormatError):
        LlamaModel(path, vocab_only=True)


def test_fake_models_have_one_as_well() -> None:
    assert FakeModel(seed=1).vocabulary == FakeModel(seed=2).vocabulary
    assert FakeModel().vocabulary != FakeModel(n_vocab=400).vocabulary
