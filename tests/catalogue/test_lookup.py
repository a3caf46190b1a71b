from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgedec.catalogue import fetch, find
from edgedec.catalogue.schema import Card
from edgedec.errors import DownloadError, ModelNotFoundError, UnknownNameError, UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two models in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("qwen3-0.6b.gguf", "smollm2.gguf", "notes.txt"):
        (folder / name).write_bytes(b"GGUF")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of cards that were asked for; nothing is fetched."""
    names: list[str] = []

    def bring(card: Card, progress: object) -> Path:
        names.append(card.name)
        return Path("/brought")

    monkeypatch.setattr(fetch, "bring", bring)
    return names


def test_nothing_means_the_default(brought: list[str]) -> None:
    assert find() == find(None) == Path("/brought")
    assert brought == ["smollm2-135m"] * 2


def test_a_catalogue_name_wins_over_a_folder_of_that_name(here: Path, brought: list[str]) -> None:
    (here / "smollm2-135m").mkdir()
    assert find("smollm2-135m") == Path("/brought")


def test_a_file_wins_over_a_catalogue_name(here: Path, brought: list[str]) -> None:
    (here / "smollm2-135m").write_bytes(b"GGUF")
    assert find("smollm2-135m") == here / "smollm2-135m"
    assert find(None) == Path("/brought")


@pytest.mark.parametrize("form", ["smollm2.gguf", "./smollm2.gguf", "../here/smollm2.gguf", "notes.txt"])
def test_an_existing_file_is_taken_whatever_it_is_called(here: Path, form: str) -> None:
    assert find(form).is_absolute()
    assert find(form).samefile(here / Path(form).name)
    assert find(Path(form)).samefile(here / Path(form).name)


def test_a_tilde_is_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))
    assert find("~/smollm2.gguf") == here / "smollm2.gguf"


@pytest.mark.parametrize("form", ["smolm2.gguf", "./smolm2.gguf", os.path.join("..", "here", "smolm2")])
def test_a_missing_file_is_named_in_full_with_what_is_nearby(here: Path, form: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find(form)
    assert str(Path(form).absolute()) in str(caught.value)
    assert "smollm2.gguf" in caught.value.hint
    assert "notes.txt" not in caught.value.hint


def test_a_path_object_is_never_a_name() -> None:
    with pytest.raises(ModelNotFoundError):
        find(Path("smollm2-135m"))


def test_a_missing_folder_is_said(here: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find("nowhere/a.gguf")
    assert f"no folder {here / 'nowhere'}" in caught.value.hint


def test_a_folder_without_models_nearby_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find(str(tmp_path / "a.gguf"))
    assert "smollm2-135m" in caught.value.hint


def test_a_repository_without_hf_is_recognised(here: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find("someone/tiny-GGUF")
    assert "hf:someone/tiny-GGUF" in caught.value.hint


def test_a_folder_is_refused_with_what_is_in_it(here: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a folder") as caught:
        find(str(here))
    assert "qwen3-0.6b.gguf, smollm2.gguf" in caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match="is a folder") as caught:
        find(tmp_path / "empty")
    assert "no .gguf" in caught.value.hint


def test_long_lists_are_cut(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"model-{i:02d}.gguf").touch()
    with pytest.raises(ModelNotFoundError) as caught:
        find(tmp_path)
    assert caught.value.hint.endswith("and 22 more.")


def test_an_unknown_name_suggests_the_nearest_and_what_a_path_looks_like(here: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find("smollm2-135n")
    assert "'smollm2-135m'" in caught.value.hint
    assert ".gguf" in caught.value.hint


def test_an_address_is_refused(here: Path) -> None:
    with pytest.raises(UsageError, match="address"):
        find("https://example.org/tiny.gguf")


@pytest.mark.parametrize("spec", ["hf:", "hf:tiny", "hf:a/b/c", "hf:a/b:", "hf:a b/c"])
def test_a_repository_needs_an_owner_and_a_name(spec: str) -> None:
    with pytest.raises(UsageError, match="does not name a repository"):
        find(spec)


@pytest.mark.parametrize("spec", ["hf:someone/tiny-GGUF:Q4_1", "hf:someone/tiny-GGUF:tiny-Q4_1.gguf"])
def test_a_file_of_a_repository_is_fetched_once(hub_server, content: bytes, notes, spec: str) -> None:
    hub_server.repo = {"tiny-Q4_1.gguf": content, "tiny-Q8_0.gguf": b"GGUF"}
    path = find(spec, progress=notes)
    assert path.read_bytes() == content
    assert (len(content), len(content)) in notes.counts.values()
    asked = hub_server.asked.total()
    assert find(spec) == path
    assert hub_server.asked.total() == asked, "a model on this machine needs no network"


def test_a_repository_with_one_model_needs_no_file(hub_server) -> None:
    hub_server.repo = {"README.md": b"", "mmproj.gguf": b"GGUF", "tiny-Q4_1.gguf": b"GGUF"}
    assert find("hf:someone/tiny-GGUF").name == "tiny-Q4_1.gguf"


def test_all_parts_are_fetched_and_the_first_is_returned(hub_server) -> None:
    parts = [f"Q8_0/tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub_server.repo = {part: b"GGUF" + part.encode() for part in parts}
    path = find("hf:someone/tiny-GGUF:Q8_0")
    assert path.name == "tiny-00001-of-00003.gguf"
    assert sorted(other.name for other in path.parent.iterdir()) == [Path(part).name for part in parts]


def test_several_models_are_listed(hub_server) -> None:
    hub_server.repo = {"tiny-Q4_1.gguf": b"GGUF", "tiny-Q8_0.gguf": b"GGUF"}
    with pytest.raises(UsageError, match="holds 2 models") as caught:
        find("hf:someone/tiny-GGUF")
    assert "tiny-Q4_1.gguf, tiny-Q8_0.gguf" in caught.value.hint


def test_a_file_that_is_not_there_shows_what_is(hub_server) -> None:
    hub_server.repo = {"tiny-Q4_1.gguf": b"GGUF"}
    with pytest.raises(ModelNotFoundError, match="holds no Q2_K") as caught:
        find("hf:someone/tiny-GGUF:Q2_K")
    assert "tiny-Q4_1.gguf" in caught.value.hint
    hub_server.repo = {"tiny.safetensors": b""}
    with pytest.raises(ModelNotFoundError, match=r"holds no \.gguf"):
        find("hf:someone/tiny-GGUF")


@pytest.mark.parametrize(("status", "says"), [(401, "does not exist, or is private"), (503, "HTTP 503")])
def test_a_refusal_of_the_hub_is_one_line(hub_server, status: int, says: str) -> None:
    hub_server.repo_status = status
    with pytest.raises(DownloadError, match=says) as caught:
        find("hf:someone/tiny-GGUF")
    assert "\n" not in str(caught.value)
    assert caught.value.hint
