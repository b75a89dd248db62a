"""Captions from an OpenAI-compatible server (vLLM, SGLang, the API itself): frames as JPEG data URLs.

Requests run on threads, `concurrency` at once. The client retries what is worth retrying (429, 5xx, timeouts,
connections that break), with exponential waits and the server's Retry-After; what stays wrong is that clip's failure.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from vidpipe.captioners.base import Answer, Caption, Captioner, CaptionRequest
from vidpipe.media.errors import MediaError

if TYPE_CHECKING:
    import numpy as np

PROMPT = (
    "Describe this video clip in one paragraph: the subjects and what they do, the setting, the camera's movement, "
    "the style and the light. Only what can be seen."
)


@dataclass(frozen=True, kw_only=True)
class OpenAIConfig:
    """Parameters.

    Attributes:
        model: as the server names it.
        base_url: such as `http://localhost:8000/v1`; empty for the client's own default.
        api_key_env: environment variable that holds the key; unset, a placeholder is sent, as local servers want.
        prompt, system: user's text beside the frames, and the system's.
        num_frames: frames a clip, evenly spaced.
        longest_side: of a frame, in pixels.
        jpeg_quality: of a frame, 1 to 95.
        concurrency: requests at once, in each worker process.
        timeout_seconds: for each try.
        max_retries: further tries after the first.
        max_tokens, temperature, seed: of the answer.
        language: BCP 47 tag of the answers; empty if unknown.
    """

    model: str
    base_url: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    prompt: str = PROMPT
    system: str = ""
    num_frames: int = 8
    longest_side: int = 512
    jpeg_quality: int = 90
    concurrency: int = 8
    timeout_seconds: float = 120.0
    max_retries: int = 5
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    language: str = "en"

    def __post_init__(self) -> None:
        for name in ("num_frames", "longest_side", "concurrency", "timeout_seconds", "max_tokens"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be above 0, found {getattr(self, name)}")
        if not 1 <= self.jpeg_quality <= 95:
            raise UserError(f"jpeg_quality must be in [1, 95], found {self.jpeg_quality}")


class OpenAICaptioner(Captioner):
    """Asks a server about each clip's frames."""

    Config = OpenAIConfig

    def __init__(self, config: OpenAIConfig) -> None:
        self.config = config
        self.source = f"openai:{config.model}"

    @functools.cached_property
    def _client(self) -> Any:
        try:
            import openai
        except ImportError:
            raise UserError("captioner openai: the client is not installed; pip install 'vidpipe[captions]'") from None
        return openai.OpenAI(
            api_key=os.environ.get(self.config.api_key_env) or "none",
            base_url=self.config.base_url or None,
            timeout=self.config.timeout_seconds,
            max_retries=self.config.max_retries,
        )

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Answer]:
        client = self._client  # made once, before threads want it
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            return list(pool.map(lambda request: self._answer(client, request), requests))

    def _answer(self, client: Any, request: CaptionRequest) -> Answer:
        import openai

        where = f"{request.uris[0]}, {request.row['start_seconds']:.2f} s"
        try:
            frames = request.frames(self.config.num_frames, self.config.longest_side)
            response = client.chat.completions.create(**self._payload(frames))
        except MediaError as error:
            return error
        except (openai.AuthenticationError, openai.NotFoundError, openai.PermissionDeniedError) as error:
            raise UserError(f"captioner {self.source}: {error}") from None  # wrong for every clip: stop
        except (openai.OpenAIError, json.JSONDecodeError) as error:  # the client lets a malformed body through
            return MediaError("captioner_failed", f"{where}: {self.source}: {type(error).__name__}: {error}")
        return self._captions(response, where)

    def _payload(self, frames_THWC: np.ndarray) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": self.config.prompt}]
        for frame in frames_THWC:
            content.append({"type": "image_url", "image_url": {"url": data_url(frame, self.config.jpeg_quality)}})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if self.config.system:
            messages.insert(0, {"role": "system", "content": self.config.system})
        return {
            "model": self.config.model,
            "messages": messages,
            "max_tokens": self.config.max_tokens,
            "temperature": self.config.temperature,
            "seed": self.config.seed,
        }

    def _captions(self, response: Any, where: str) -> Answer:
        told = f"{where}: {self.source}: an answer without text"
        try:  # the client does not check what a server sends
            content = response.choices[0].message.content
        except (AttributeError, IndexError, KeyError, TypeError):
            content = None
        text = " ".join(content.split()) if isinstance(content, str) else ""
        if not text:
            return MediaError("captioner_failed", told)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return MediaError("captioner_failed", f"{told} that is Unicode: {error}")
        usage = getattr(response, "usage", None)
        return [
            Caption(
                text=text,
                language=self.config.language or None,
                prompt_tokens=_count(usage, "prompt_tokens"),
                completion_tokens=_count(usage, "completion_tokens"),
            )
        ]


def _count(usage: Any, name: str) -> int:
    """Tokens as the server counts them; 0 where it says nothing that is a number."""
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else 0


def data_url(frame_HWC: np.ndarray, quality: int) -> str:
    """A frame, uint8 RGB, as a JPEG data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame_HWC).save(buffer, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
