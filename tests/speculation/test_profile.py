"""Cost profiles on disk: a good file is read, anything else means a new measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.speculation import profile

KEY = profile.profile_key("model/build", "threads 4")
COST = {1: 10.5, 2: 12.25, 16: 80.0}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def stored_file(home: Path) -> Path:
    (path,) = home.rglob("*.json")
    return path


def test_nothing_stored() -> None:
    assert profile.load(KEY) is None


def test_round_trip(home: Path) -> None:
    profile.store(KEY, COST)
    assert profile.load(KEY) == COST
    profile.store(KEY, {1: 1.0})
    assert profile.load(KEY) == {1: 1.0}
    assert [path.suffix for path in home.rglob("*") if path.is_file()] == [".json"]


@pytest.mark.parametrize(("fingerprint", "settings"), [("model/other", "threads 4"), ("model/build", "threads 8")])
def test_keys_are_apart(fingerprint: str, settings: str) -> None:
    profile.store(KEY, COST)
    assert profile.load(profile.profile_key(fingerprint, settings)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1, 2]",
        '"layout"',
        "{}",
        "\x00\xff",
        '{"layout": 1}',
    ],
)
def test_damaged_file(home: Path, text: str) -> None:
    profile.store(KEY, COST)
    stored_file(home).write_bytes(text.encode("latin-1"))
    assert profile.load(KEY) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", 0),
        ("layout", "1"),
        ("key", "somebody else's"),
        ("cost_ms", None),
        ("cost_ms", [10.0, 12.0]),
        ("cost_ms", {}),
        ("cost_ms", {"2": 12.0}),
        ("cost_ms", {"1": 0.0}),
        ("cost_ms", {"1": 10.0, "2": -1.0}),
        ("cost_ms", {"1": 10.0, "0": 5.0}),
        ("cost_ms", {"1": 10.0, "two": 5.0}),
        ("cost_ms", {"1": 10.0, "2": None}),
        ("cost_ms", {"1": 10.0, "2": float("nan")}),
        ("cost_ms", {"1": 10.0, "2": float("inf")}),
        ("cost_ms", {"1": 10.0, "2": 10**400}),
    ],
)
def test_foreign_or_impossible_content(home: Path, field: str, value: object) -> None:
    profile.store(KEY, COST)
    path = stored_file(home)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert profile.load(KEY) is None


def test_file_is_a_folder(home: Path) -> None:
    profile.store(KEY, COST)
    path = stored_file(home)
    path.unlink()
    path.mkdir()
    assert profile.load(KEY) is None
    profile.store(KEY, COST)
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left behind


def test_home_cannot_be_written(home: Path) -> None:
    home.write_text("a file where a folder should be")
    profile.store(KEY, COST)
    assert profile.load(KEY) is None


def test_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    profile.store(KEY, COST)
    monkeypatch.setattr(profile.json, "dump", full)
    profile.store(KEY, {1: 1.0})
    assert profile.load(KEY) == COST
    assert [path.suffix for path in home.rglob("*") if path.is_file()] == [".json"]
