"""What a captioner is: it is asked for some clips at once and answers captions, nothing, or why it could not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from schemas.config import build
from vidpipe.media.errors import MediaError

if TYPE_CHECKING:
    import numpy as np

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Caption:
    """One caption.

    Attributes:
        text: not empty.
        language: BCP 47 tag, or None if unknown.
        prompt_tokens, completion_tokens: what a model billed for it; 0 where there is no model.
    """

    text: str
    language: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class CaptionRequest:
    """One clip to caption.

    Attributes:
        row: what is known of the clip: columns of the joined clip view.
        uris: where its video was found; sidecars may lie beside any of them.
        frames: call it with (count, longest side in pixels) for frames_THWC uint8 RGB, evenly spaced over the clip,
            letterbox bars cut off; raises MediaError.
    """

    row: Row
    uris: Sequence[str]
    frames: Callable[[int, int], np.ndarray]


Answer = list[Caption] | MediaError
"""Captions of a clip; an empty list where there are none; a MediaError where it could not be asked."""


class Captioner:
    """Base of captioners.

    Attributes:
        source: what the captions are filed under, such as `sidecar` or `openai:MODEL`.
        Config: frozen dataclass of its parameters.
    """

    source: str
    Config: ClassVar[type]

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Answer]:
        """Answer each request, in order."""
        raise NotImplementedError


def make_captioner(name: str, params: Mapping[str, Any]) -> Captioner:
    """Captioner by registry name; raises UserError on an unknown name or parameter."""
    from vidpipe.registry import load_captioner

    cls = load_captioner(name)
    return cls(build(cls.Config, params, f"caption.captioners.{name}"))


def request_for(row: Row, decoder: str = "auto") -> CaptionRequest:
    """Request for a row of the clip view; nothing is opened until frames are asked for."""

    def frames(count: int, longest_side: int) -> np.ndarray:
        return clip_frames(row, count, longest_side, decoder)

    return CaptionRequest(row=row, uris=row["uris"], frames=frames)


def clip_frames(row: Row, count: int, longest_side: int, decoder: str = "auto") -> np.ndarray:
    """Evenly spaced frames of a clip as THWC uint8 RGB, at most `longest_side` pixels wide and high.

    The clip is cut into `count` equal parts and the frame in the middle of each is taken; a clip of fewer frames
    gives each of its frames once. Never enlarged.
    """
    import numpy as np

    from vidpipe.media.decode import open_video
    from vidpipe.media.facts import VideoFacts
    from vidpipe.media.identity import location
    from vidpipe.media.packets import index_of
    from vidpipe.media.reference import ClipReference

    clip = ClipReference.of(row, location(row))
    crop = letterbox(row)
    width, height = (crop[2], crop[3]) if crop else (row["width"], row["height"])
    scale = min(1.0, longest_side / max(width, height))
    size_hw = (max(1, round(height * scale)), max(1, round(width * scale)))
    facts = VideoFacts.of(clip.uri, row.get("video_facts") or {})
    with open_video(clip.uri, clip.stream_index, decoder=decoder, facts=facts, packets=index_of([row])) as reader:
        pts = np.asarray(reader.frame_pts(clip))
        if not len(pts):
            raise MediaError("no_frames", f"{clip.uri}, {clip.start_seconds:.2f} s: no frame could be decoded")
        num = min(count, len(pts))
        chosen = pts[((np.arange(num) + 0.5) * len(pts) / num).astype(int)]
        batch = reader.frames(clip, chosen.tolist(), size_hw=size_hw, crop_xywh=crop)
    return batch.frames_TCHW.permute(0, 2, 3, 1).cpu().numpy()


def letterbox(row: Row) -> tuple[int, int, int, int] | None:
    """x, y, width, height inside the bars, from the letterbox scorer's columns; None without them."""
    names = ("crop_x", "crop_y", "crop_width", "crop_height")
    values = [row.get(name) for name in names]
    return None if None in values else (values[0], values[1], values[2], values[3])  # type: ignore[return-value]
