"""Clips as small JPEG strips, decoded from their sources."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

NUM_FRAMES = 3
STRIP_HEIGHT = 84


def frame_size(height: int, width: int) -> tuple[int, int]:
    """(height, width) of one frame of a strip, even numbers."""
    return STRIP_HEIGHT, max(2, min(4 * STRIP_HEIGHT, round(STRIP_HEIGHT * width / height / 2) * 2))


def strip(clip: Mapping[str, Any]) -> str:
    """`data:` URL of three frames of a clip side by side, from its first, middle and last third.

    Args:
        clip: row of the `clip` view: uris, stream_index, span, width, height, user_crop.
    Raises:
        UserError, OSError: the source is gone, or cannot be decoded any more.
    """
    from vidpipe.media.decode import open_video
    from vidpipe.media.identity import location
    from vidpipe.media.packets import index_of
    from vidpipe.media.reference import ClipReference

    reference = ClipReference.of(clip, location(clip))
    with open_video(reference.uri, reference.stream_index, packets=index_of([clip])) as reader:
        times = reader.frame_pts(reference)
        chosen = [int(times[len(times) * (2 * i + 1) // (2 * NUM_FRAMES)]) for i in range(NUM_FRAMES)]
        frames = reader.frames(reference, chosen, size_hw=frame_size(clip["height"], clip["width"]))
    return jpeg_url(frames.frames_TCHW.permute(0, 2, 3, 1).cpu().numpy())


def jpeg_url(frames_THWC: Any) -> str:
    """`data:` URL of uint8 RGB frames side by side."""
    import numpy as np
    from PIL import Image

    gap = np.full((frames_THWC.shape[1], 2, 3), 255, np.uint8)
    parts = [part for frame in frames_THWC for part in (frame, gap)][:-1]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(parts, axis=1)).save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
