from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgedec import paths


def test_one_variable_moves_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("EDGEDEC_HOME", str(home))
    assert paths.models_dir() == home / "models"
    assert paths.state_dir() == home / "state"
    assert paths.corpus_dir() == home / "corpus"
    assert not home.exists(), "only writers create folders"


def test_home_may_be_relative_or_start_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEDEC_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert paths.models_dir() == tmp_path / "here" / "models"
    monkeypatch.setenv("EDGEDEC_HOME", "~/there")
    assert paths.models_dir() == tmp_path / "there" / "models"


@pytest.mark.parametrize("unset", [None, ""])
def test_without_it_the_system_decides(monkeypatch: pytest.MonkeyPatch, unset: str | None) -> None:
    if unset is None:
        monkeypatch.delenv("EDGEDEC_HOME", raising=False)
    else:
        monkeypatch.setenv("EDGEDEC_HOME", unset)
    assert paths.models_dir().name == "models"
    assert paths.models_dir().parent.name == "edgedec"
    assert paths.corpus_dir() == paths.models_dir().parent / "corpus"
    assert paths.state_dir().name == "edgedec"
    assert all(path.is_absolute() for path in (paths.models_dir(), paths.state_dir()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG variables are for Linux")
def test_xdg_folders_are_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGEDEC_HOME", raising=False)
    for kind in ("DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    assert paths.models_dir() == tmp_path / "DATA" / "edgedec" / "models"
    assert paths.state_dir() == tmp_path / "STATE" / "edgedec"


def test_importing_it_costs_nothing() -> None:
    code = "import sys, edgedec.paths; sys.exit('platformdirs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
