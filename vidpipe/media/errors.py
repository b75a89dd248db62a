"""Why a file or a clip cannot be used, as a code for tables and a sentence for people."""

from __future__ import annotations

from schemas.errors import UserError

REASONS: dict[str, str] = {
    "not_media": "the bytes are no container or image that FFmpeg knows",
    "empty_file": "the file has no bytes",
    "no_video_stream": "a container without a moving or still picture",
    "audio_only": "a container whose only streams are sound",
    "cover_art_only": "the only picture is cover art",
    "encrypted": "the samples are encrypted",
    "unsupported_codec": "no decoder here knows the codec",
    "truncated_header": "the file ends before its header does",
    "bad_header": "the header contradicts itself or the file",
    "oversized": "the header claims a picture larger than the limit",
    "no_frames": "no frame could be decoded",
    "hdr_rejected": "high dynamic range, which the recipe rejects",
    "interlaced_rejected": "interlaced, which the recipe rejects",
    "damaged": "requested frames are damaged",
    "io_error": "the file could not be read",
    "changed": "another file is where ingest saw this one",
    "deadline": "it took longer than its deadline",
    "crashed": "the decoder's process died",
    "decode_error": "the decoder failed",
    "bad_sidecar": "a caption file beside the video is malformed",
    "captioner_failed": "the captioner gave no usable answer",
}
"""Every reason code that this package raises, and its meaning."""


class MediaError(UserError):
    """A file or clip that cannot be used.

    Attributes:
        reason: a key of `REASONS`.
        message: where, what was expected, what was found.
    """

    def __init__(self, reason: str, message: str) -> None:
        assert reason in REASONS, reason
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type[MediaError], tuple[str, str]]:
        return MediaError, (self.reason, self.message)
