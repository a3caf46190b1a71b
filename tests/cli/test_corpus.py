"""``edgedec corpus``: add, list, remove, stats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgedec.drafters import store as store_module
from tests.cli.conftest import Cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts, and what is none."""
    root = tmp_path / "texts"
    files = {
        "one.txt": b"the sky is blue",
        "sub/two.md": "é € the sky".encode(),
        "sub/bom.txt": "\ufeffthe sky is blue\r\n".encode(),
        "empty.txt": b" \n",
        "image.png": b"\x89PNG\0\0",
        "latin.txt": b"caf\xe9",
        "long.txt": b"a" * ((1 << 20) + 1),
        ".hidden": b"the sky",
        ".git/config": b"the sky",
        "node_modules/x.js": b"the sky",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def added(cli: Cli, folder: Path, tiny: Path) -> Path:
    assert cli("corpus", "add", folder, "-m", tiny).code == 0
    return folder


def names(cli: Cli) -> list[str]:
    return sorted(os.path.basename(d["name"]) for d in cli("corpus", "list", "--json").json["documents"])


def test_a_folder_is_searched_for_texts(cli: Cli, folder: Path, tiny: Path) -> None:
    done = cli("corpus", "add", folder, "-m", tiny)
    assert done.code == 0
    *rows, last = done.out.splitlines()
    assert [row.split()[-1] for row in rows] == [
        str(folder / name) for name in ("one.txt", "sub/bom.txt", "sub/two.md")
    ]
    assert last.startswith("Added 3 documents with ")
    for words in ("1 empty", "1 not a text", "1 not in UTF-8", "1 more than 1,048,576 bytes"):
        assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_list(cli: Cli, added: Path) -> None:
    lines = cli("corpus", "list").out.splitlines()
    assert [line.split()[-1] for line in lines[:-1]] == sorted(
        str(added / name) for name in ("one.txt", "sub/bom.txt", "sub/two.md")
    )
    assert lines[-1].endswith("; 0 past answers with 0 tokens.")
    documents = cli("corpus", "list", "--json").json["documents"]
    first = next(d for d in documents if d["name"] == str(added / "one.txt"))
    assert set(first) == {"id", "kind", "name", "owner", "model", "vocabulary", "time", "n_tokens"}
    assert (first["kind"], first["model"], first["owner"]) == ("document", "tiny", "")
    assert 0 < first["n_tokens"] <= len("the sky is blue")


def test_adding_again_replaces(cli: Cli, added: Path, tiny: Path) -> None:
    before = cli("corpus", "list", "--json").json["documents"]
    (added / "one.txt").write_text("the sky is blue. " * 10)
    assert cli("corpus", "add", added / "one.txt", added, "-m", tiny).code == 0
    after = cli("corpus", "list", "--json").json["documents"]
    assert sorted(d["name"] for d in before) == sorted(d["name"] for d in after)
    assert sum(d["n_tokens"] for d in after) > sum(d["n_tokens"] for d in before)


def test_remove_by_path_folder_and_id(cli: Cli, added: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("corpus", "remove", added / "sub")
    assert done.out.startswith("Removed 2 documents with ")
    assert names(cli) == ["one.txt"]
    cli("corpus", "add", added, "-m", tiny)
    monkeypatch.chdir(added)
    assert cli("corpus", "remove", "one.txt").code == 0
    assert names(cli) == ["bom.txt", "two.md"]
    first = cli("corpus", "list", "--json").json["documents"][0]
    assert cli("corpus", "remove", first["id"]).code == 0
    assert names(cli) == sorted({"bom.txt", "two.md"} - {os.path.basename(first["name"])})


def test_remove_what_is_not_there(cli: Cli, added: Path) -> None:
    cli("corpus", "remove", added / "one.txt", added / "sub" / "two.mb").assert_is_error(2, "two.mb", "two.md")
    cli("corpus", "remove", "nowhere").assert_is_error(2, "nowhere")
    cli("corpus", "remove").assert_is_error(2, "--answers")
    assert len(names(cli)) == 3, "all or nothing"


def test_answers_are_counted_and_removed(cli: Cli, added: Path, model: list[str]) -> None:
    flags = [*model, "-n", "40", "--speculate", "history", "--temperature", "0"]
    for extra in ([], ["--no-learn"], ["--learn"]):
        assert cli("run", f"Hi {extra}", *flags, *extra).code == 0
    assert cli("corpus", "list").out.splitlines()[-1].endswith("; 2 past answers with 80 tokens.")
    found = cli("corpus", "stats", "--json").json["stores"][0]
    assert found["answers"] == {"n": 2, "n_tokens": 80}
    assert found["documents"]["n"] == 3
    assert (
        "Removed 0 documents with 0 tokens and 2 past answers with 80 tokens."
        in cli("corpus", "remove", "--answers").out
    )
    assert len(names(cli)) == 3


def test_stats(cli: Cli, added: Path, home: Path) -> None:
    found = cli("corpus", "stats", "--json").json
    assert set(found) == {"folder", "limit_tokens", "stores"}
    assert (found["folder"], found["limit_tokens"]) == (str(home / "corpus"), 2_000_000)
    (store,) = found["stores"]
    assert set(store) == {"vocabulary", "models", "bytes", "documents", "answers"}
    assert store["models"] == ["tiny"]
    assert store["bytes"] == sum(path.stat().st_size for path in (home / "corpus").rglob("index-*"))
    out = cli("corpus", "stats").out
    for words in (store["vocabulary"], "tiny", str(home / "corpus"), f"{store['bytes']:,} bytes"):
        assert words in out


def test_nothing_is_stored_yet(cli: Cli, home: Path) -> None:
    assert cli("corpus", "list").out == "0 documents with 0 tokens; 0 past answers with 0 tokens.\n"
    assert "nothing is stored" in cli("corpus", "stats").out
    assert cli("corpus", "stats", "--json").json["stores"] == []
    cli("corpus", "remove", "a").assert_is_error(2, "a")
    assert not home.exists()


def test_without_a_command_there_is_help(cli: Cli) -> None:
    done = cli("corpus")
    assert done.code == 0
    assert all(word in done.out for word in ("add", "list", "remove", "stats"))


@pytest.mark.parametrize("name", ["missing.txt", "image.png", "latin.txt", "empty.txt"])
def test_a_named_file_must_be_a_text(cli: Cli, folder: Path, tiny: Path, name: str) -> None:
    cli("corpus", "add", folder / "one.txt", folder / name, "-m", tiny).assert_is_error(2, name)
    assert names(cli) == []


def test_a_folder_without_texts(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "nothing").mkdir()
    cli("corpus", "add", tmp_path / "nothing", "-m", tiny).assert_is_error(2, "no text file")


def test_models_that_do_not_exist_or_are_none(cli: Cli, folder: Path) -> None:
    cli("corpus", "add", folder / "one.txt", "-m", folder / "no.gguf").assert_is_error(2, "no.gguf")
    cli("corpus", "add", folder / "one.txt", "-m", folder / "one.txt").assert_is_error(1, "not a GGUF")


def test_more_than_fits(cli: Cli, folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module.Store, "document_limit", 3)
    cli("corpus", "add", folder / "one.txt", "-m", tiny).assert_is_error(2, "3 are possible", "corpus list")
    assert names(cli) == []


def test_a_damaged_store_is_named(cli: Cli, added: Path, home: Path) -> None:
    (path,) = (home / "corpus").rglob("index-*")
    path.write_bytes(b"damaged")
    for command in (["list"], ["stats"], ["remove", "--answers"]):
        cli("corpus", *command).assert_is_error(1, str(path), "Delete")


@pytest.mark.skipif(os.name != "posix", reason="names are bytes there")
def test_names_that_are_no_text(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.txt")
    Path(path).write_text("the sky")
    assert cli("corpus", "add", path, "-m", tiny).code == 0
    assert cli("corpus", "list", "--json").json["documents"][0]["name"] == path
    assert "caf??.txt" in cli("corpus", "list").out
    assert cli("corpus", "remove", path).code == 0
    assert names(cli) == []
