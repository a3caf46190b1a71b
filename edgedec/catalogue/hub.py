"""The Hugging Face hub and its cache on this machine. The only module that imports huggingface_hub (0.2 s).

A file in the cache is used as it is: whoever has a model can go on without a network. Every failure becomes a
`DownloadError` whose text is a reason to put behind a colon, without a full stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from edgedec.catalogue.progress import Progress
from edgedec.errors import DownloadError

ANSWER_S = 8.0
"""How long the hub may take to say what it has."""

T = TypeVar("T")


def cache_dir() -> Path:
    """The root of the cache, which other programs share."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached(repo: str, filename: str, revision: str | None = None) -> Path | None:
    """The cached copy of a file, if there is one. Never touches the network."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(repo, filename, revision=revision)
    except OSError:  # a cache that cannot be read holds nothing for us
        return None
    return Path(path) if isinstance(path, str) else None


def cached_names(repo: str) -> list[str]:
    """Names of the files of ``repo`` that are in the cache. Never touches the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, allow_patterns="*.gguf", local_files_only=True))
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
    except (LocalEntryNotFoundError, OSError):
        return []


def listing(repo: str, revision: str | None = None) -> dict[str, int]:
    """Name → bytes of all files of ``repo``, asked of the hub. Fails within `ANSWER_S` if the hub cannot be reached,
    which `download` alone would not: it tries again and again for half a minute."""
    from huggingface_hub import HfApi

    limit = 2 * ANSWER_S  # of the thread that is left behind; the one below is to strike first
    info = _within(ANSWER_S, lambda: HfApi().model_info(repo, revision=revision, timeout=limit, files_metadata=True))
    return {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}


def download(repo: str, filename: str, progress: Progress, revision: str | None = None, force: bool = False) -> Path:
    """Bring one file into the cache. ``force``: also if it is there already, because that copy is known to be wrong."""
    from huggingface_hub import hf_hub_download

    bar = _bar(progress, f"Downloading {filename} from the Hugging Face hub")
    try:
        return Path(hf_hub_download(repo, filename, revision=revision, force_download=force, tqdm_class=bar))
    except Exception as error:  # the HTTP library underneath differs from release to release
        raise DownloadError(_reason(error)) from error


def _within(seconds: float, call: Callable[[], T]) -> T:
    """``call()`` on a thread that is left behind when time is up: looking up a name, or connecting to each of several
    addresses in turn, heeds no time limit."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        raise DownloadError(f"no answer within {seconds:.0f} s") from error
    except Exception as error:
        raise DownloadError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "switched off by HF_HUB_OFFLINE"
    if isinstance(error, errors.GatedRepoError):
        return "the repository asks you to accept its terms and to log in (hf auth login)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the repository does not exist, or is private and needs you to log in (hf auth login)"
    if isinstance(error, errors.HfHubHTTPError):
        return f"answers with HTTP {error.response.status_code}"
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
        return _reason(error.__cause__)
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"cannot be reached ({text or type(error).__name__})"


def _bar(progress: Progress, message: str) -> type[Any]:
    """A progress bar that draws nothing, but tells ``progress``."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that watches over drawing

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            progress(message, int(self.n), None if self.total is None else int(self.total))

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the wire are counted apart from bytes of the file; one number is enough to show."""

    return Bar
