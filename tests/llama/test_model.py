"""Files that llama.cpp loads and files that it must not get; vocabularies, byte by byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import (
    ClosedError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    ModelUnsupportedError,
    UsageError,
)
from edgedec.llama.base import ContextParams
from edgedec.llama.model import LlamaModel
from tests.damage import broken
from tests.tiny_gguf import BOS, CHAT_TEMPLATE, CONTROL, EOS, N_VOCAB, write_text_model

any_text = st.text(st.characters(exclude_categories=()), max_size=60)
NASTY = (
    "é",
    "🦊👩‍👩‍👧",
    "a\0b\0",
    "\ud800 alone",
    "\r\n\t \u00a0\u2028",
    " leading",
    "<s></s><|end|>",
    "\x7f\x1b[2J",
    "",
)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(tiny)
    yield model
    model.close()


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(smollm2)
    yield model
    model.close()


def spelled(model: LlamaModel, text: str) -> bytes:
    return b"".join(map(model.piece, model.tokenize(text)))


# Facts


def test_facts_of_the_file(model: LlamaModel, tiny: Path) -> None:
    assert (model.path, model.name, model.architecture) == (tiny, "tiny", "llama")
    assert model.n_vocab == N_VOCAB
    assert model.n_ctx_train == 2048
    assert 100_000 < model.n_params < 120_000
    assert model.n_bytes == 4 * model.n_params
    assert model.chat_template == CHAT_TEMPLATE
    assert (model.bos_id, model.eos_id) == (BOS, EOS)
    ends = {model.tokenize(text, parse_special=True)[0] for text in ("<|end|>", "<|im_end|>")}
    assert model.eog_ids == {EOS, *ends}


def test_metadata_is_text_without_the_vocabulary(model: LlamaModel) -> None:
    assert model.metadata["general.architecture"] == "llama"
    assert model.metadata["llama.context_length"] == "2048"
    assert model.metadata["tokenizer.chat_template"] == CHAT_TEMPLATE, "long values are not cut"
    assert "tokenizer.ggml.tokens" not in model.metadata
    assert sum(map(len, model.metadata.values())) < 1000


def test_a_model_may_have_no_template(tmp_path: Path) -> None:
    model = LlamaModel(write_text_model(tmp_path / "bare.gguf", chat_template=None))
    assert model.chat_template is None
    model.close()


def test_the_fingerprint_follows_the_content(model: LlamaModel, tiny: Path, tmp_path: Path) -> None:
    copy = LlamaModel(Path(shutil.copy(tiny, tmp_path / "copy.gguf")))
    other = LlamaModel(write_text_model(tmp_path / "other.gguf", seed=1))
    assert copy.fingerprint == model.fingerprint != other.fingerprint
    copy.close()
    other.close()


# Vocabulary


@pytest.mark.parametrize("text", NASTY)
def test_text_comes_back_byte_by_byte(model: LlamaModel, text: str) -> None:
    assert spelled(model, text) == text.encode("utf-8", "replace")


@settings(deadline=None)
@given(any_text)
def test_any_text_comes_back_byte_by_byte(model: LlamaModel, text: str) -> None:
    assert spelled(model, text) == text.encode("utf-8", "replace")


def test_a_vocabulary_may_put_a_space_in_front(tmp_path: Path) -> None:
    model = LlamaModel(write_text_model(tmp_path / "spm.gguf", space_prefix=True))
    assert spelled(model, "hello") == b" hello"
    model.close()


def test_special_tokens_only_when_asked(model: LlamaModel) -> None:
    assert model.tokenize("a", add_special=True) == [BOS, *model.tokenize("a")]
    assert model.tokenize("", add_special=True) == [BOS]
    for spelling in ("<s>", "</s>", *CONTROL):
        (token,) = model.tokenize(spelling, parse_special=True)
        assert model.is_control(token)
        assert model.piece(token) == b""
        assert model.special_text(token) == spelling
        plain = model.tokenize(spelling)
        assert len(plain) > 1
        assert not any(map(model.is_control, plain))
    assert set(model.control_strings()) == {"<unk>", "<s>", "</s>", *CONTROL}
    assert not model.is_control(model.tokenize("a")[0])


def test_every_token_has_bytes_or_a_spelling(model: LlamaModel) -> None:
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    assert {bytes([i]) for i in range(256)} <= set(pieces)
    for token, piece in enumerate(pieces):
        assert piece or model.special_text(token)


def test_ids_that_do_not_exist(model: LlamaModel) -> None:
    for bad in (-1, model.n_vocab, 2**31):
        for question in (model.piece, model.special_text, model.is_control):
            with pytest.raises(UsageError, match="not in the vocabulary"):
                question(bad)


def test_more_text_than_32_bits_can_count(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.llama.model._MAX_TEXT", 10)
    assert model.tokenize("é" * 5)
    with pytest.raises(UsageError, match="11 bytes"):
        model.tokenize("é" * 5 + "a")


@pytest.mark.gguf
@pytest.mark.parametrize("text", NASTY)
def test_real_text_comes_back_byte_by_byte(real: LlamaModel, text: str) -> None:
    assert spelled(real, text) == text.encode("utf-8", "replace")


@pytest.mark.gguf
@settings(deadline=None)
@given(any_text)
def test_any_real_text_comes_back_byte_by_byte(real: LlamaModel, text: str) -> None:
    data = text.encode("utf-8", "replace")
    # llama.cpp drops bytes that have no token: some control characters, and the beginning of unassigned characters.
    known = bytes(set(b"".join(real.piece(token) for token in range(1000))))
    assert len(known) > 230
    assert spelled(real, text) == bytes(b for b in data if b in known)


@pytest.mark.gguf
def test_facts_of_the_real_file(real: LlamaModel) -> None:
    assert real.architecture == "llama"
    assert (real.n_vocab, real.n_ctx_train) == (49152, 8192)
    assert real.n_params == catalogue_n_params()
    assert real.chat_template
    assert "<|im_start|>" in real.chat_template
    assert real.eos_id in real.eog_ids
    assert {real.special_text(token) for token in real.eog_ids} >= {"<|endoftext|>", "<|im_end|>"}
    assert real.control_strings()[:1] == (max(real.control_strings(), key=len),)
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(real.control_strings())
    assert [real.special_text(t) for t in real.tokenize("<|im_start|>user\n", parse_special=True)] == [
        "<|im_start|>", "user", "\n",
    ]  # fmt: skip


def catalogue_n_params() -> int:
    from edgedec.catalogue import DEFAULT, card

    return card(DEFAULT).n_params


@pytest.mark.gguf
def test_every_real_piece_is_what_its_spelling_says(real: LlamaModel) -> None:
    for token in range(real.n_vocab):
        piece, spelling = real.piece(token), real.special_text(token)
        assert spelling
        assert piece.decode("utf-8", "replace") == ("" if real.is_control(token) else spelling)


# Loading


def test_progress_is_told_and_may_stop_the_load(tiny: Path) -> None:
    fractions: list[float] = []
    LlamaModel(tiny, progress=fractions.append).close()
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1

    def refuse(fraction: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LlamaModel(tiny, progress=refuse)


def test_after_close_everything_is_refused(tiny: Path) -> None:
    model = LlamaModel(tiny)
    model.close()
    model.close()
    questions = [
        lambda: model.tokenize("a"),
        lambda: model.piece(5),
        lambda: model.special_text(5),
        lambda: model.is_control(5),
        lambda: model.control_strings(),
        lambda: model.new_context(ContextParams()),
        lambda: model.n_params,
        lambda: model.n_bytes,
        lambda: model.n_ctx_train,
        lambda: model.chat_template,
        lambda: model.bos_id,
        lambda: model.eos_id,
    ]
    for question in questions:
        with pytest.raises(ClosedError):
            question()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not allow such names")
def test_a_path_need_not_be_utf8(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff \xc3\xa9.gguf")
    shutil.copy(tiny, path)
    LlamaModel(path).close()


# Files that cannot be used


def test_broken_files_are_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    for what, content in broken(tiny).items():
        path.write_bytes(content)
        with pytest.raises((ModelFormatError, ModelUnsupportedError)) as caught:
            LlamaModel(path)
        message = f"{what}: {caught.value}"
        assert "bad.gguf" in message
        assert message.isprintable(), message
        assert len(str(caught.value).replace(str(path), "")) < 300, message
        assert caught.value.hint, message
        assert "failed to load model" not in message, "that much is clear"


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("empty", ModelFormatError, "is empty"),
        ("text", ModelFormatError, "not a GGUF file"),
        ("magic only", ModelFormatError, "is truncated"),
        ("header only", ModelFormatError, "truncated or damaged"),
        ("cut in the vocabulary", ModelFormatError, "truncated or damaged"),
        ("cut in the weights", ModelFormatError, "truncated or damaged"),
        ("last byte missing", ModelFormatError, "truncated or damaged"),
        ("big-endian", ModelFormatError, "is big-endian"),
        ("version 99", ModelFormatError, "has GGUF version 99"),
        ("unknown architecture", ModelUnsupportedError, "lmama"),
        ("a byte without a token", ModelFormatError, "no token for 1 of the 256 bytes"),
    ],
)
def test_what_is_wrong_is_said(tiny: Path, tmp_path: Path, what: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(broken(tiny)[what])
    with pytest.raises(error, match=message):
        LlamaModel(path)


def test_models_that_do_not_write_text(tiny_embedding: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match="embedding model"):
        LlamaModel(tiny_embedding)
    with pytest.raises(ModelUnsupportedError, match="image part"):
        LlamaModel(write_text_model(tmp_path / "mmproj.gguf", "clip"))


def test_a_text_model_that_was_made_to_embed(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match="embedding model"):
        LlamaModel(write_text_model(tmp_path / "e.gguf", is_embedding=True))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(ModelNotFoundError, match="cannot be read"):
            LlamaModel(path)


def test_names_in_a_file_do_not_reach_the_terminal(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    path = tmp_path / "bad.gguf"
    path.write_bytes(data.replace(b"blk.0.attn_norm.weight", b"blk.0.attn_\x1b[2J\nnweight")[:-1000])
    with pytest.raises(ModelError) as caught:
        LlamaModel(path)
    assert str(caught.value).isprintable()


FUZZ = """
import os, random, sys
from pathlib import Path
import edgedec
from edgedec.llama import lib
content, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
lib.on_fatal(lambda message: (print("fatal", message, flush=True), os._exit(9)))
for seed in map(int, sys.argv[3:]):
    choose = random.Random(seed)
    at, by = choose.randrange(1 << 16), choose.randrange(1, 256)
    at = at if seed % 4 == 0 else at % 8400  # where the metadata is
    path.write_bytes(content[:at] + bytes([content[at] ^ by]) + content[at + 1 :])
    try:
        with edgedec.load(path, speculate="off", n_threads=1) as llm:
            llm.generate("Hello", max_tokens=3)
        print("fine", flush=True)
    except edgedec.EdgedecError as error:
        assert str(error).isprintable() and error.hint
        print("refused", flush=True)
"""


def test_one_wrong_byte_never_ends_in_a_crash_without_a_reason(tiny: Path, tmp_path: Path) -> None:
    """Every byte that is changed: loads and runs, is refused, or llama.cpp says which assertion failed."""
    todo = [str(seed) for seed in range(200)]
    outcomes: list[str] = []
    while todo:
        done = subprocess.run(
            [sys.executable, "-c", FUZZ, tiny, tmp_path / "bad.gguf", *todo],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        lines = [line.partition(" ")[0] for line in done.stdout.splitlines()]
        assert done.stderr == "", done.stderr
        assert done.returncode == (9 if lines[-1] == "fatal" else 0), (done.returncode, todo[len(lines) - 1])
        outcomes += lines
        todo = todo[len(lines) :]
    assert {"fine", "refused"} <= set(outcomes) <= {"fine", "refused", "fatal"}
    assert outcomes.count("fatal") < 10
