"""``edgedec run --prediction FILE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.drafters.predicted import PredictedDrafter
from tests.cli.conftest import Cli

FLAGS = ["-n", "8", "--temperature", "0", "--json", "--speculate", "predicted"]


def test_the_file_is_expected_and_changes_nothing(
    cli: Cli, model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[int]] = []
    monkeypatch.setattr(PredictedDrafter, "expect", lambda self, seq_id, prediction: heard.append(list(prediction)))
    files = [tmp_path / name for name in ("unix.txt", "windows.txt")]
    files[0].write_bytes("one\nüwo\n".encode())
    files[1].write_bytes("\ufeffone\r\nüwo\r\n".encode())
    answer = cli("run", "Hi", *model, *FLAGS).json
    assert heard == []
    for file in files:
        assert cli("run", "Hi", *model, *FLAGS, "--prediction", file).json["token_ids"] == answer["token_ids"]
    assert heard[0] == heard[1] != []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a" * 20_000], ids=["empty", "not text", "long"])
def test_any_file_will_do(cli: Cli, model: list[str], tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert cli("run", "Hi", *model, *FLAGS, "--prediction", file).json["usage"]["completion_tokens"] <= 8


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_what_cannot_be_read(cli: Cli, tmp_path: Path, name: str) -> None:
    done = cli("run", "Hi", "-m", tmp_path / "no model is looked for", "--prediction", tmp_path / name)
    done.assert_is_error(2, str(tmp_path / name), "--prediction")
