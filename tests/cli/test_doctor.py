"""``edgedec doctor``: never raises, whatever it finds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edgedec import catalogue
from edgedec.cli import doctor
from edgedec.llama import lib
from tests.cli.conftest import COMMAND, Cli


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine of the tests lacks is not the business of the tests."""
    monkeypatch.setattr(doctor, "_cpu_flags", lambda: set())
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.machine, "memory", lambda: doctor.machine.Memory(8 << 30, 4 << 30, 6 << 30))


def test_in_words(cli: Cli, home: Path) -> None:
    done = cli("doctor")
    assert (done.code, done.err) == (0, "")
    assert "limited to 6.0 GiB" in done.out
    assert str(home / "models") in done.out
    assert "smollm2-135m: not here yet" in done.out
    assert done.out.endswith("\nNothing is wrong.\n")


def test_as_an_object(cli: Cli, home: Path) -> None:
    found = cli("doctor", "--json").json
    assert found.keys() == {"edgedec", "machine", "llama", "models", "problems"}
    assert found["problems"] == []
    assert found["machine"]["memory_available"] == 4 << 30
    assert found["llama"]["llama_cpp_python"] == lib.versions()["llama_cpp_python"]
    assert any(device["kind"] == "cpu" for device in found["llama"]["devices"])
    assert found["models"]["folder"] == str(home / "models")
    assert found["models"]["default"] == {"name": catalogue.DEFAULT, "path": None}
    assert not home.exists(), "looking changes nothing"


def test_model_files_are_listed(cli: Cli, home: Path, tiny: Path) -> None:
    folder = home / "models"
    folder.mkdir(parents=True)
    (folder / "b.gguf").write_bytes(tiny.read_bytes())
    (folder / "a.gguf").write_bytes(b"")
    (folder / "gone.gguf").symlink_to(folder / "nowhere")
    (folder / "folder.gguf").mkdir()
    (folder / "notes.txt").write_text("")
    found = cli("doctor", "--json").json["models"]["files"]
    assert found == [{"name": "a.gguf", "bytes": 0}, {"name": "b.gguf", "bytes": tiny.stat().st_size}]


def test_little_memory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.machine, "memory", lambda: doctor.machine.Memory(8 << 30, 1 << 28, None))
    done = cli("doctor")
    assert done.code == 1
    assert "! Only 0.2 GiB of memory are free.\n  Close other programs" in done.out


def test_a_processor_that_could_do_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cpu_flags", lambda: {"avx2", "fma"})
    monkeypatch.setattr(lib, "system_info", lambda: "CPU : SSE3 = 1 | FMA = 1 | OPENMP = 1")
    done = cli("doctor")
    assert done.code == 1
    assert "! This processor has AVX2, but llama.cpp was built without it." in done.out
    assert "has FMA" not in done.out
    (line,) = [line for line in done.out.splitlines() if "pip install" in line]
    assert "--no-deps" in line
    assert f"--no-binary llama-cpp-python llama-cpp-python=={lib.versions()['llama_cpp_python']}" in line


def test_a_gpu_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(has_gpu_build: bool, kinds: set[str]) -> str:
        report = doctor.Report()
        doctor._check_build(report, "", has_gpu_build=has_gpu_build, kinds=kinds)
        return " ".join(what for what, _ in report.problems)

    assert problems(False, {"cpu"}) == ""
    assert problems(True, {"cpu", "gpu"}) == ""
    assert "finds none" in problems(True, {"cpu"})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.Path, "exists", lambda self: True)
    assert "for the CPU only" in problems(False, {"cpu"})


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_home_that_is_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "file"))
    done = cli("doctor", *flags)
    assert done.code == 1
    assert "cannot be written" in done.out


def test_a_library_that_cannot_be_loaded() -> None:
    code = "import sys; sys.modules['llama_cpp'] = None; from edgedec.cli import main; main(sys.argv[1:])"
    for flags in ([], ["--json"]):
        done = subprocess.run(
            [COMMAND[0], "-c", code, "doctor", *flags], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (1, "")
        assert "llama.cpp cannot be loaded" in done.stdout
        assert "pip install --force-reinstall" in done.stdout


def test_for_real(spawn: Cli) -> None:
    done = spawn("doctor")
    assert done.code in (0, 1)
    assert done.err == ""
    assert ("Nothing is wrong." in done.out) == (done.code == 0)
    assert done.out.startswith("edgedec ")
    assert os.environ["EDGEDEC_HOME"] in done.out
