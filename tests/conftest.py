"""What every test stands on: a home of its own, no network, and model files small and real."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub.constants as hub_constants  # reads the user's environment now, before it is changed below
import pytest

from edgedec import catalogue
from tests.tiny_gguf import write_embedding_model, write_text_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model, for tests marked ``gguf``. Found in the user's own folders, or fetched into them once."""
    return catalogue.find()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that holds everything edgedec writes; the hub and the package index cannot be reached."""
    folder = tmp_path / "home"
    monkeypatch.setenv("EDGEDEC_HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 450 kB with a chat template."""
    return write_text_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that cannot write text."""
    return write_embedding_model(tmp_path_factory.mktemp("models") / "bert.gguf")
