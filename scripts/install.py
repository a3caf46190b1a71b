"""Make a virtual environment and install edgedec into it, saying what takes long.

    python scripts/install.py VENV [--dev]

llama-cpp-python is published as source, so llama.cpp is compiled here: once, pip keeps the wheel.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = "usually 3 to 10 minutes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--dev", action="store_true", help="with the tools for tests and checks")
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 (this script is what finds an old Python)
        print(f"edgedec needs Python 3.11 or newer; this is {sys.version.split()[0]}.", file=sys.stderr)
        print("  Name another one: make run PYTHON=python3.12", file=sys.stderr)
        return 2
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        print("No C++ compiler was found, and llama.cpp has to be compiled.", file=sys.stderr)
        print(
            "  Debian/Ubuntu: apt install g++   Fedora: dnf install gcc-c++   macOS: xcode-select --install",
            file=sys.stderr,
        )
        return 1
    python = args.venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        say(f"Making a virtual environment in {args.venv}")
        subprocess.run([sys.executable, "-m", "venv", str(args.venv)], check=True)
    target = f"{ROOT}[dev]" if args.dev else str(ROOT)
    say(f"Installing edgedec{' with the test tools' if args.dev else ''}")
    return pip_install(python, target)


def pip_install(python: Path, target: str) -> int:
    """Run pip with its output in a log; show what it is doing and for how long."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-e", target]
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w+", suffix="-edgedec-install.log", delete=False) as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        doing = ["resolving dependencies"]
        reader = threading.Thread(target=_read, args=(process, log, doing), daemon=True)
        reader.start()
        shown_at = 0.0
        is_live = sys.stderr.isatty()
        while process.poll() is None:
            time.sleep(0.2)
            elapsed = time.monotonic() - began
            if elapsed - shown_at >= (1 if is_live else 30):
                shown_at = elapsed
                line = f"  {doing[0]}, {int(elapsed) // 60}:{int(elapsed) % 60:02d}"
                print(f"\r{line:<78}" if is_live else line, end="" if is_live else "\n", file=sys.stderr, flush=True)
        reader.join()
        if is_live and shown_at:
            print("\r" + " " * 78 + "\r", end="", file=sys.stderr, flush=True)
    if process.returncode:
        tail = Path(log.name).read_text(errors="replace").splitlines()[-15:]
        print("\n".join(tail), file=sys.stderr)
        print(f"The installation failed; the whole log is {log.name}", file=sys.stderr)
        return 1
    Path(log.name).unlink()
    say(f"Installed in {time.monotonic() - began:.0f} s")
    return 0


def _read(process: subprocess.Popen[str], log: object, doing: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.write(line)  # type: ignore[attr-defined]
        if "Building wheel for llama" in line and "started" in line:
            doing[0] = f"compiling llama.cpp ({EXPECTED}, only once)"
            say("Compiling llama.cpp from source: " + EXPECTED + ", only once; pip keeps the result")
        elif line.startswith("Collecting "):
            doing[0] = "collecting " + line.split()[1][:40]
        elif line.startswith("Installing collected"):
            doing[0] = "installing packages"


def say(text: str) -> None:
    clear = "\r" + " " * 78 + "\r" if sys.stderr.isatty() else ""
    print(f"{clear}• {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
