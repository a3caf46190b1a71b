"""Against servers of our own that say what llama.cpp's says, at times of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

from edgedec.bench import server
from edgedec.bench.record import Settings
from edgedec.bench.server import Endpoint, Server
from edgedec.errors import EdgedecError, UsageError
from tests.bench.lab import case

SETTINGS = Settings(max_tokens=5, seed=3)
PROPS = {"model_path": "/models/a.gguf", "build_info": "b1-abc", "default_generation_settings": {"n_ctx": 2048}}


@dataclass
class Script:
    """What the server says: by path, a status and either an object or the events of a stream."""

    gets: dict[str, tuple[int, Any]] = field(default_factory=dict)
    posts: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def script() -> Iterator[Script]:
    said = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            said.asked.append((self.path, None))
            self.say(*said.gets.get(self.path, (404, {"error": {"message": "File Not Found"}})))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said.asked.append((self.path, body))
            self.say(*said.posts.get(self.path, (404, {"error": {"message": "File Not Found"}})))

        def say(self, status: int, content: Any) -> None:
            is_stream = isinstance(content, list)
            data = (
                content if is_stream else [json.dumps(content).encode() if not isinstance(content, bytes) else content]
            )
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in data:
                line = part if isinstance(part, bytes) else f"data: {json.dumps(part)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.005,))  # seconds between two looks at shutdown
        thread.start()
        said.url = f"http://127.0.0.1:{http.server_port}"
        yield said
        http.shutdown()
        thread.join()


def ticks(ms: float = 10.0) -> Callable[[], float]:
    """A clock that goes on by so much each time it is looked at."""
    times = count(1)
    return lambda: next(times) * ms / 1e3


def native(*tokens: tuple[int, str], **last: Any) -> list[Any]:
    parts = [{"content": text, "tokens": [token], "stop": False} for token, text in tokens]
    end = {"content": "", "tokens": [], "stop": True, "tokens_predicted": len(tokens), "stop_type": "limit", **last}
    return [*parts, end]


def ask(script: Script, kind: Any, stop: Sequence[str] = ()) -> Any:
    url = script.url + ("/v1" if kind == "openai" else "")
    return Server(Endpoint(url, kind, "a", "", None), stop, ticks()).answer(case(2, ids=(7, 8, 9)), SETTINGS)


# ---- finding


def test_a_llama_cpp_server_is_found(script: Script) -> None:
    script.gets["/props"] = (200, PROPS)
    assert server.find(script.url + "/") == Endpoint(script.url, "native", "/models/a.gguf", "b1-abc", 2048)


def test_another_server_is_asked_the_openai_way(script: Script) -> None:
    script.gets["/v1/models"] = (200, {"data": [{"id": "tiny"}]})
    assert server.find(script.url) == Endpoint(f"{script.url}/v1", "openai", "tiny", "", None)


def test_the_openai_endpoint_of_a_llama_cpp_server_can_be_asked_for(script: Script) -> None:
    script.gets["/props"] = (200, PROPS)
    script.gets["/v1/models"] = (200, {"data": [{"id": "a.gguf"}]})
    assert server.find(script.url + "/v1").kind == "openai"
    assert [path for path, _ in script.asked] == ["/v1/models"]


def test_something_else_answers_there(script: Script) -> None:
    with pytest.raises(EdgedecError, match="neither") as caught:
        server.find(script.url)
    assert caught.value.exit_code == 1
    script.gets["/props"] = script.gets["/v1/models"] = (200, b"<html>")
    with pytest.raises(EdgedecError, match="neither"):
        server.find(script.url)


def test_a_server_that_is_still_loading(script: Script) -> None:
    script.gets["/props"] = (503, {"error": {"message": "Loading model"}})
    with pytest.raises(EdgedecError, match="not ready"):
        server.find(script.url)


def test_nobody_answers(script: Script) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    with pytest.raises(EdgedecError, match="does not answer") as caught:
        server.find(f"http://127.0.0.1:{port}")
    assert "Start it" in caught.value.hint


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://127.0.0.1", "http://", "http://host:port", "http://host:0", ""]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="not the address"):
        server.find(url)


# ---- the native endpoint


def test_a_native_answer(script: Script) -> None:
    timings = {"draft_n": 8, "draft_n_accepted": 3}
    script.posts["/completion"] = (200, native((1, "a"), (2, "b"), (3, "c"), (4, ""), (5, "é"), timings=timings))
    found = ask(script, "native", stop=("<end>",))
    assert found.text == "abcé"
    assert found.token_ids == (1, 2, 3, 4, 5)
    assert found.n_tokens == 4, "the first is not counted"
    assert found.seconds == pytest.approx(0.040)
    assert found.rate == pytest.approx(100.0)
    assert found.finish_reason == "length"
    assert (found.drafters["server"].drafted, found.drafters["server"].accepted) == (8, 3)
    assert found.steps == ()
    (path, body) = script.asked[0]
    assert path == "/completion"
    assert body["prompt"] == [7, 8, 9], "the very tokens that our modes get"
    assert (body["n_predict"], body["temperature"], body["seed"], body["stop"]) == (5, 0.0, 5, ["<end>"])
    assert body["stream"] is True


def test_the_end_token_is_not_part_of_a_native_answer(script: Script) -> None:
    script.posts["/completion"] = (200, native((1, "a"), (2, "b"), (99, ""), stop_type="eos"))
    found = ask(script, "native")
    assert found.token_ids == (1, 2)
    assert found.n_tokens == 1
    assert found.seconds == pytest.approx(0.020), "but it took its time"
    assert found.finish_reason == "eog"


def test_tokens_that_end_inside_a_character_are_not_sent(script: Script) -> None:
    script.posts["/completion"] = (200, native((1, "a"), (3, "é"), tokens_predicted=3))
    found = ask(script, "native")
    assert found.token_ids is None
    assert found.n_tokens == 2


# ---- the OpenAI endpoint


def chat(*texts: str | None, reason: str | None = "length", **last: Any) -> list[Any]:
    parts: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": text}}]} for text in texts]
    if reason:
        parts.append({"choices": [{"delta": {}, "finish_reason": reason}]})
    return [*parts, *([{"choices": [], **last}] if last else []), b"data: [DONE]\n\n"]


def test_an_openai_answer(script: Script) -> None:
    timings = {"draft_n": 2, "draft_n_accepted": 2}
    script.posts["/v1/chat/completions"] = (
        200,
        chat(None, "a", "b", "cd", usage={"completion_tokens": 4}, timings=timings),
    )
    found = ask(script, "openai")
    assert found.text == "abcd"
    assert found.token_ids is None
    assert found.n_tokens == 3
    assert found.seconds == pytest.approx(0.020)
    assert found.drafters["server"].accepted == 2
    (_, body) = script.asked[0]
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["model"], body["max_tokens"], body["seed"], body["stream"]) == ("a", 5, 5, True)


def test_the_count_of_an_openai_answer_includes_its_end(script: Script) -> None:
    script.posts["/v1/chat/completions"] = (200, chat("a", "b", "c", reason="stop", usage={"completion_tokens": 4}))
    assert ask(script, "openai").n_tokens == 2


def test_without_a_count_pieces_are_counted(script: Script) -> None:
    script.posts["/v1/chat/completions"] = (200, chat("a", "b", "c"))
    assert ask(script, "openai").n_tokens == 2


# ---- what goes wrong


@pytest.mark.parametrize("kind", ["native", "openai"])
@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (
            400,
            {"error": {"message": "the request exceeds\n the context size", "code": 400}},
            "exceeds the context size",
        ),
        (500, b"out of order", "out of order"),
        (500, b"", "no reason given"),
        (200, [{"error": {"message": "it broke"}}], "it broke"),
        (200, [b'error: {"message": "the old way"}\n\n'], "the old way"),
        (200, [b"data: nonsense\n\n"], "not JSON"),
        (200, [b"data: [1]\n\n"], "not JSON"),
        (200, [], "broke off"),
        (200, [{"content": "a", "tokens": [1], "choices": [{"delta": {"content": "a"}}]}], "broke off"),
    ],
)
def test_refusals_are_told_in_one_line(script: Script, kind: str, status: int, content: Any, words: str) -> None:
    script.posts["/completion"] = script.posts["/v1/chat/completions"] = (status, content)
    with pytest.raises(EdgedecError, match=words) as caught:
        ask(script, kind)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_pings_and_comments_are_no_events(script: Script) -> None:
    events = native((1, "a"), (2, "b"))
    script.posts["/completion"] = (200, [b":\n\n", events[0], b": ping\n\n", *events[1:]])
    assert ask(script, "native").text == "ab"
