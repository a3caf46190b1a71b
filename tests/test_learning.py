"""Answers that are stored for next time, unless somebody said no."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.config import EngineConfig, may_learn
from edgedec.drafters.store import Document, Store, stores
from edgedec.errors import UsageError
from edgedec.llm import LLM
from edgedec.paths import corpus_dir

PROMPT = "Why is the sky blue?"


def load(model: Path, learn: bool | None = None, **options: object) -> LLM:
    return edgedec.load(model, learn=learn, speculate="history", n_threads=1, **options)


def stored() -> list[Document]:
    return [document for store in stores(corpus_dir()) for document in store.documents()]


def test_an_answer_serves_the_next_load(tiny: Path) -> None:
    with load(tiny) as llm:
        first = llm.generate(PROMPT, temperature=0, max_tokens=60)
    assert first.speculation.drafted == 0
    (document,) = stored()
    assert document.tokens.tolist() == first.token_ids
    assert (document.kind, document.model) == ("answer", "tiny")
    with load(tiny, learn=False) as llm:
        second = llm.generate(PROMPT, temperature=0, max_tokens=60)
    assert second.token_ids == first.token_ids
    assert second.speculation.drafters["history"].drafted_per_pos
    assert stored() == [document]


def test_models_of_one_vocabulary_share_a_store(tiny: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.gguf"
    twin.write_bytes(tiny.read_bytes())
    for path in (tiny, twin):
        with load(path) as llm:
            llm.generate(PROMPT, temperature=0, max_tokens=30)
            assert [store.folder.name for store in stores(corpus_dir())] == [llm.model.vocabulary]
    assert [document.model for document in stored()] == ["tiny", "twin"]


def test_a_context_that_grows_keeps_what_was_learnt(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.engine.setup.DEFAULT_CTX", 64)
    with load(tiny) as llm:
        llm.generate(PROMPT, temperature=0, max_tokens=20)
        llm.generate(PROMPT, temperature=0, max_tokens=80)
    assert [len(document.tokens) for document in stored()] == [20, 80]


def test_nothing_is_stored_of_plain_answers(tiny: Path) -> None:
    with load(tiny) as llm:
        llm.generate(PROMPT, max_tokens=30, speculate=False)
    with edgedec.load(tiny, speculate="off", n_threads=1) as llm:
        llm.generate(PROMPT, max_tokens=30)
    assert not corpus_dir().exists()


def test_drafters_are_closed_with_the_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[Store] = []
    monkeypatch.setattr(Store, "merge", lambda self, n_tail=0: merged.append(self))
    with load(tiny) as llm:
        llm.generate(PROMPT, max_tokens=30)
        merged.clear()
    assert len(merged) == 1


def test_a_home_that_cannot_be_written_to(tiny: Path, home: Path) -> None:
    home.mkdir()
    (home / "corpus").write_text("in the way")
    with load(tiny) as llm:
        assert len(llm.generate(PROMPT, max_tokens=30).token_ids) == 30


@pytest.mark.parametrize(
    ("wanted", "variable", "expected"),
    [
        (None, None, True),
        (None, "", True),
        (None, "1", True),
        (None, "0", False),
        (None, " 0 ", False),
        (True, "0", True),
        (False, "1", False),
        (True, "maybe", True),
    ],
)
def test_who_decides(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, variable: str | None, expected: bool
) -> None:
    monkeypatch.delenv("EDGEDEC_LEARN", raising=False)
    if variable is not None:
        monkeypatch.setenv("EDGEDEC_LEARN", variable)
    assert may_learn(wanted) is expected


def test_the_variable_is_honoured_and_checked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_LEARN", "0")
    with load(tiny) as llm:
        llm.generate(PROMPT, max_tokens=30)
    assert not corpus_dir().exists()
    monkeypatch.setenv("EDGEDEC_LEARN", "perhaps")
    with pytest.raises(UsageError, match="EDGEDEC_LEARN is 'perhaps'"):
        load(tiny)


def test_learning_is_the_default() -> None:
    assert EngineConfig().learn
