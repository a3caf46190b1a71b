"""The door to llama.cpp: loading the library once, its log, its build, its devices, and the fast entry points.

Importing this module loads the native library. Everything else in `edgedec.llama` goes through it.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from edgedec.errors import EdgedecError

try:
    import llama_cpp
    from llama_cpp import _ggml
    from llama_cpp import llama_cpp as capi
except (ImportError, OSError, RuntimeError) as error:
    reason = " ".join(str(error).split())
    raise EdgedecError(f"llama.cpp cannot be loaded: {reason}", "Run edgedec doctor, which says what to do.") from error

__all__ = [
    "Device",
    "abort_predicate",
    "build",
    "capi",
    "complaints",
    "devices",
    "get_logits_ith",
    "on_fatal",
    "supports_gpu_offload",
    "system_info",
    "token_to_piece",
    "undisturbed",
    "versions",
]

T = TypeVar("T")

log = logging.getLogger("edgedec.llama.cpp")
logging.getLogger("edgedec").addHandler(logging.NullHandler())  # quiet unless the application configures logging

# ggml_log_level; 5 continues the line before it.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5


class _LogSink:
    """Joins llama.cpp's log fragments to lines, sends them to `logging`, and keeps the last complaints, because a
    failing call of llama.cpp says only in its log what was wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line = ""
        self._level = 1
        self.complaints: deque[str] = deque(maxlen=32)

    def write(self, level: int, text: str) -> None:
        with self._lock:
            if level != _CONTINUE:
                self._level = level
            self._line += text
            *lines, self._line = self._line.split("\n")
            current = self._level
            for line in lines:
                if current in (3, 4) and line.strip():
                    self.complaints.append(line.strip())
        for line in lines:
            if line.strip():
                log.log(_LEVELS.get(current, logging.DEBUG), "%s", line.rstrip())


_sink = _LogSink()


@capi.llama_log_callback  # type: ignore[untyped-decorator]
def _log_callback(level: int, text: bytes, _: Any) -> None:
    try:
        _sink.write(level, text.decode("utf-8", "replace"))
    except Exception:  # an exception must not travel through native frames
        if not sys.is_finalizing():
            sys.stderr.write("edgedec: a log line of llama.cpp was lost\n")


capi.llama_log_set(_log_callback, ctypes.c_void_p(0))
capi.llama_backend_init()


def _print_fatal(message: str) -> None:
    sys.stderr.write(f"llama.cpp: {message}\n")
    sys.stderr.flush()


_fatal_handler: Callable[[str], None] = _print_fatal
_fatal_lock = threading.Lock()


def on_fatal(handler: Callable[[str], None]) -> None:
    """``handler(message)`` is called, on any thread, when an assertion inside llama.cpp has failed. When it returns,
    the process is aborted: nothing can prevent that, but a handler can say why, or end the process in a better way."""
    global _fatal_handler
    _fatal_handler = handler


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _fatal_callback(message: bytes) -> None:
    _fatal_lock.acquire()  # for ever: several workers may fail at once, and one report is enough
    file, _, text = message.decode("utf-8", "replace").strip().partition(": ")
    _fatal_handler(f"{text or file} ({file.replace(chr(92), '/').rpartition('/')[2]})")


# Some Windows builds do not export it there; then llama.cpp prints its own message.
if _set_abort_callback := getattr(capi._lib, "ggml_set_abort_callback", None):
    _set_abort_callback.restype, _set_abort_callback.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    _set_abort_callback(ctypes.cast(_fatal_callback, ctypes.c_void_p))


def undisturbed(call: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Run native code that calls back into Python on a thread of its own, and wait for it.

    Python handles signals on the main thread, and what a handler raises (Ctrl-C) inside a callback cannot pass through
    native frames: it would be printed and lost. Here it strikes the waiting instead; then ``stop`` is called, the end
    of ``call`` is waited for, and the exception goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="edgedec-load", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except BaseException:
        stop()
        if thread.ident is not None:  # it did start
            wait([outcome])
        raise


def forget_complaints() -> None:
    """What `last_complaint` gives from now on was logged after this call."""
    _sink.complaints.clear()


def last_complaint(default: str) -> str:
    """The last warning or error that llama.cpp logged."""
    return _sink.complaints[-1] if _sink.complaints else default


@contextmanager
def complaints() -> Iterator[list[str]]:
    """Collects the warnings and errors that llama.cpp logs inside the block; the list is filled when it ends."""
    _sink.complaints.clear()
    found: list[str] = []
    try:
        yield found
    finally:
        found.extend(_sink.complaints)


def _fast(name: str, restype: Any, *argtypes: Any) -> Any:
    """A fresh function object, so that result types suit numpy: void* is an int, which costs nothing to read."""
    function = capi._lib[name]
    function.restype = restype
    function.argtypes = argtypes
    return function


get_logits_ith = _fast("llama_get_logits_ith", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
token_to_piece = _fast(
    "llama_token_to_piece",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_bool,
)


def abort_predicate() -> Any:
    """A native ``bool (*)(void *)`` that is true while the byte it points to is not zero.

    llama.cpp asks its abort callback once per graph node, hundreds of times per step, and a Python function there would
    need the interpreter's lock each time. ``strlen`` of a one-byte string is exactly the predicate we need.
    """
    libc = ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)
    return ctypes.cast(libc.strlen, capi.ggml_abort_callback)


@dataclass(frozen=True, slots=True)
class Device:
    """One compute device that ggml sees. ``kind``: cpu, gpu, igpu, accel. Bytes are 0 where it does not tell."""

    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int


_DEVICE_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")


def devices() -> list[Device]:
    """The devices of this build, in ggml's order."""
    g = _ggml.libggml
    g.ggml_backend_dev_count.restype = ctypes.c_size_t
    g.ggml_backend_dev_get.restype = ctypes.c_void_p
    g.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name in ("name", "description"):
        function = getattr(g, f"ggml_backend_dev_{name}")
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    g.ggml_backend_dev_type.restype, g.ggml_backend_dev_type.argtypes = ctypes.c_int, [ctypes.c_void_p]
    size_p = ctypes.POINTER(ctypes.c_size_t)
    g.ggml_backend_dev_memory.restype = None
    g.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_p, size_p]
    found = []
    for i in range(g.ggml_backend_dev_count()):
        dev = g.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        g.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
        kind = g.ggml_backend_dev_type(dev)
        found.append(
            Device(
                name=(g.ggml_backend_dev_name(dev) or b"").decode("utf-8", "replace"),
                description=(g.ggml_backend_dev_description(dev) or b"").decode("utf-8", "replace"),
                kind=_DEVICE_KINDS[kind] if 0 <= kind < len(_DEVICE_KINDS) else str(kind),
                memory_free=int(free.value),
                memory_total=int(total.value),
            )
        )
    return found


@cache
def system_info() -> str:
    """llama.cpp's own line on what it was compiled for."""
    return (capi.llama_print_system_info() or b"").decode("utf-8", "replace").strip(" |")


@cache
def build() -> str:
    """Names this build: versions and processor features. A part of every stored measurement's key."""
    version = (capi.llama_version() or b"").decode("utf-8", "replace")
    return f"llama-cpp-python {llama_cpp.__version__}, llama.cpp {version}, {system_info()}"


def versions() -> dict[str, str]:
    """Versions of the binding and of llama.cpp."""
    return {
        "llama_cpp_python": str(llama_cpp.__version__),
        "llama_cpp": (capi.llama_version() or b"").decode("utf-8", "replace"),
    }


def supports_gpu_offload() -> bool:
    """Whether this build can put layers on a GPU at all."""
    return bool(capi.llama_supports_gpu_offload())
