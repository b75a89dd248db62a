"""The OpenAI-compatible captioner against a real HTTP server."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.captioners.base import CaptionRequest
from vidpipe.captioners.openai_server import OpenAICaptioner, OpenAIConfig
from vidpipe.media.errors import MediaError


class Server(ThreadingHTTPServer):
    """Answers what `script` says for each request: (status, body or None for a good answer, delay)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, Any, float]] = []
        self.requests: list[dict[str, Any]] = []
        self.running = self.most_running = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append({"path": self.path, "key": self.headers["Authorization"], "body": body})
            status, answer, delay = server.script.pop(0) if server.script else (200, None, 0.0)
            server.running += 1
            server.most_running = max(server.most_running, server.running)
        threading.Event().wait(delay)
        with server.lock:
            server.running -= 1
        if answer is None:
            answer = {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": " a  dog\nruns "}}
                ],
                "usage": {"prompt_tokens": 120, "completion_tokens": 7, "total_tokens": 127},
            }
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def captioner(server: Server, **options: Any) -> OpenAICaptioner:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return OpenAICaptioner(OpenAIConfig(**{"model": "tiny", "base_url": url, "num_frames": 2, **options}))


def request(value: int = 200) -> CaptionRequest:
    def frames(count: int, side: int) -> np.ndarray:
        return np.full((count, 32, 48, 3), value, np.uint8)

    return CaptionRequest(row={"start_seconds": 1.0, "end_seconds": 2.0}, uris=["v.mp4"], frames=frames)


def test_sends_frames_as_jpegs_and_reads_text_and_tokens(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    (answer,) = captioner(server, api_key_env="MY_KEY", system="be brief").caption([request()])
    assert isinstance(answer, list)
    (caption,) = answer
    assert (caption.text, caption.language, caption.prompt_tokens, caption.completion_tokens) == (
        "a dog runs",
        "en",
        120,
        7,
    )
    (sent,) = server.requests
    assert sent["path"] == "/v1/chat/completions" and sent["key"] == "Bearer secret"
    assert sent["body"]["model"] == "tiny" and sent["body"]["messages"][0] == {"role": "system", "content": "be brief"}
    urls = [p["image_url"]["url"] for p in sent["body"]["messages"][1]["content"] if p["type"] == "image_url"]
    assert len(urls) == 2
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(urls[0].partition(",")[2]))))
    assert picture.shape == (32, 48, 3) and abs(int(picture.mean()) - 200) <= 1


def test_retries_what_passes(server: Server) -> None:
    server.script = [(429, {"error": {"message": "slow down"}}, 0), (500, {"error": {"message": "oops"}}, 0)]
    (answer,) = captioner(server).caption([request()])
    assert isinstance(answer, list) and len(server.requests) == 3


def test_what_stays_wrong_is_that_clips_failure(server: Server) -> None:
    server.script = [(500, {"error": {"message": "oops"}}, 0)] * 2
    bad, good = captioner(server, max_retries=1, concurrency=1).caption([request(), request()])
    assert isinstance(bad, MediaError) and bad.reason == "captioner_failed" and "v.mp4, 1.00 s" in str(bad)
    assert isinstance(good, list)


def test_timeout(server: Server) -> None:
    server.script = [(200, None, 2.0)]
    (answer,) = captioner(server, timeout_seconds=0.3, max_retries=0).caption([request()])
    assert isinstance(answer, MediaError) and "Timeout" in str(answer)


@pytest.mark.parametrize("body", [b"not json", {"choices": []}, {"choices": [{"message": {"content": ""}}]}])
def test_malformed_answers(server: Server, body: Any) -> None:
    server.script = [(200, body, 0)] * 3
    (answer,) = captioner(server, max_retries=0).caption([request()])
    assert isinstance(answer, MediaError) and answer.reason == "captioner_failed"


@pytest.mark.parametrize("content", [["a", {"b": 1}], 7, "half \ud800 a character", " \n"])
def test_answers_that_are_no_text(server: Server, content: Any) -> None:
    server.script = [(200, {"choices": [{"message": {"content": content}}]}, 0.0)]
    answer = captioner(server).caption([request()])[0]
    assert isinstance(answer, MediaError) and answer.reason == "captioner_failed"
    assert "openai:tiny: an answer without text" in str(answer)


def test_counts_that_are_no_numbers_are_none(server: Server) -> None:
    usage = {"prompt_tokens": "many", "completion_tokens": None}
    server.script = [(200, {"choices": [{"message": {"content": "a dog"}}], "usage": usage}, 0.0)]
    (found,) = captioner(server).caption([request()])[0]  # type: ignore[misc]
    assert (found.text, found.prompt_tokens, found.completion_tokens) == ("a dog", 0, 0)


def test_concurrency_is_bounded(server: Server) -> None:
    server.script = [(200, None, 0.15)] * 9
    answers = captioner(server, concurrency=3).caption([request() for _ in range(9)])
    assert all(isinstance(a, list) for a in answers) and server.most_running == 3


def test_a_wrong_key_stops_the_run(server: Server) -> None:
    server.script = [(401, {"error": {"message": "bad key"}}, 0)]
    with pytest.raises(UserError, match="bad key"):
        captioner(server).caption([request()])


def test_a_clip_that_cannot_be_decoded_is_its_own_failure(server: Server) -> None:
    def broken(count: int, side: int) -> np.ndarray:
        raise MediaError("no_frames", "nothing there")

    clip = CaptionRequest(row={"start_seconds": 0.0}, uris=["v.mp4"], frames=broken)
    bad, good = captioner(server).caption([clip, request()])
    assert isinstance(bad, MediaError) and bad.reason == "no_frames" and isinstance(good, list)


def test_configuration_is_checked() -> None:
    with pytest.raises(UserError, match="jpeg_quality"):
        OpenAIConfig(model="m", jpeg_quality=0)
