"""Opening a container through PyAV: which demuxers are allowed, how a failure is named, which stream is the video."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vidpipe.media.errors import MediaError
from vidpipe.media.files import DEFAULT_STORAGE, READ_BYTES, Section, StorageConfig, io_errors, local_path, open_bytes

if TYPE_CHECKING:
    import av.container
    import av.video.stream

MAX_PIXELS = 1 << 26
"""Largest picture that is decoded: 8192 x 8192. Frames beyond it would not fit a worker's memory."""

DEMUXERS = """
    3g2 aa aac ac3 aiff amr ape apng asf asf_o au av1 avi avif bmp_pipe caf cavsvideo dirac dnxhd dts dv eac3
    flac flv gif gxf h261 h263 h264 hevc iv8 ivf j2k_pipe jpeg_pipe jpegls_pipe jpegxl_anim jpegxl_pipe lxf m4v matroska
    mjpeg mjpeg_2000 mov mp3 mpeg mpegts mpegvideo mpjpeg mtv mxf nsv nut nuv obu ogg png_pipe qoi_pipe r3d rm swf
    tiff_pipe truehd ty vc1 vc1test vvc w64 wav webp webp_pipe wtv wv yuv4mpegpipe
"""
"""FFmpeg demuxers that may open a file. Not those that read text (`tty` takes any .txt for a video), that open other
files or the network (concat, hls, dash, image2), or that accept any bytes at all."""

STILL_DEMUXERS = frozenset(("jpeg_pipe", "png_pipe", "bmp_pipe", "tiff_pipe", "j2k_pipe", "jpegls_pipe", "jpegxl_pipe"))

HEIF_BRANDS = frozenset(("heic", "heix", "mif1", "msf1", "avif"))

_MAGIC = (
    (4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"moof"), (4, b"wide"), (4, b"free"), (0, b"\x1a\x45\xdf\xa3"),
    (0, b"FLV"), (0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"OggS"), (8, b"AVI "), (8, b"WEBP"),
    (0, b"\x30\x26\xb2\x75"), (0, b"\xff\xd8\xff"), (0, b"\x89PNG"), (0, b"GIF8"), (0, b".RMF"),
    (0, b"\x06\x0e\x2b\x34"),
)  # fmt: skip


def looks_like_media(head: bytes) -> bool:
    """Whether the first bytes are a known container's or image's."""
    transport_stream = len(head) > 188 and head[0] == head[188] == 0x47
    return transport_stream or any(head[at : at + len(magic)] == magic for at, magic in _MAGIC)


def looks_still(head: bytes) -> bool:
    """Whether the first bytes are an image's."""
    return head[:3] == b"\xff\xd8\xff" or head[:4] == b"\x89PNG" or head[:2] in (b"II", b"MM", b"BM")


def _nameless(file: Any) -> Any:
    """The file without its name, in which FFmpeg would see a pattern (`img%03d.jpg`) or a demuxer by its suffix."""
    size = file.seek(0, 2)
    file.seek(0)
    return io.BufferedReader(Section(file, 0, size), READ_BYTES)


@contextmanager
def open_container(
    uri: str, storage: StorageConfig = DEFAULT_STORAGE, *, decode: bool = True
) -> Iterator[av.container.InputContainer]:
    """Open for demuxing; the file is closed on leaving.

    A local path goes to FFmpeg itself, anything else (remote, archive member, image) as a file object.

    Args:
        decode: False where only packets are wanted and the container gives their times: opening is then four times
            faster, since FFmpeg decodes no frame to learn what the header already says.

    Raises:
        MediaError: `empty_file`, `not_media`, `truncated_header`, `bad_header` or `io_error`.
    """
    path = local_path(uri)
    with io_errors(uri):
        file = open_bytes(uri, storage)
    try:
        with io_errors(uri):
            head = file.read(4096)
            file.seek(0)
        if not head:
            raise MediaError("empty_file", f"{uri}: the file is empty")
        target = _nameless(file) if path is None or looks_still(head) else f"file:{path}"
        container = _open(target, uri, head, decode)
        try:
            yield container
        finally:
            container.close()
    finally:
        file.close()


def _open(target: Any, uri: str, head: bytes, decode: bool) -> Any:
    import av

    options = {"format_whitelist": ",".join(DEMUXERS.split()), "max_pixels": str(MAX_PIXELS)}
    if isinstance(target, str):
        options["protocol_whitelist"] = "file"
    how: dict[str, Any] = {"container_options": options, "metadata_errors": "replace", "buffer_size": 1 << 20}
    if not decode:
        how["options"] = {"skip_frame": "all"}
    try:
        with io_errors(uri):
            return av.open(target, mode="r", **how)
    except av.error.FFmpegError as error:  # also "out of memory" and "not implemented", by which damage is met
        raise _refused(uri, head, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise MediaError("bad_header", f"{uri}: text in the header cannot be decoded: {error}") from None
    except MediaError as error:
        if isinstance(target, str) or not looks_like_media(head):
            raise _refused(uri, head, error.message.removeprefix(f"{uri}: ")) from None  # FFmpeg missed bytes
        raise


def _refused(uri: str, head: bytes, told: str) -> MediaError:
    if not looks_like_media(head):
        return MediaError("not_media", f"{uri}: no container or image that FFmpeg knows")
    if _ends_early(uri):
        return MediaError("truncated_header", f"{uri}: the file ends before its header does")
    return MediaError("bad_header", f"{uri}: a container by its first bytes, but its header cannot be read ({told})")


def _ends_early(uri: str) -> bool:
    """Whether an ISO file lacks its moov box, or a top-level box is longer than the file."""
    with io_errors(uri), open_bytes(uri) as file:
        size = file.seek(0, 2)
        position = 0
        kinds: list[bytes] = []
        while position + 8 <= size and len(kinds) < 10_000:
            file.seek(position)
            header = file.read(16)
            length, kind = int.from_bytes(header[:4], "big"), header[4:8]
            length = int.from_bytes(header[8:16], "big") if length == 1 else length or size - position
            kinds.append(kind)
            if length < 8:
                return False
            position += length
        iso = bool(kinds) and kinds[0] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"styp")
        return iso and (position > size or b"moov" not in kinds)


def choose_stream(container: Any, uri: str, stream_index: int | None = None) -> Any:
    """The video stream: not cover art; the largest of those marked default, else the largest; ties to the lowest index.

    Raises:
        MediaError: `no_video_stream`, `audio_only` or `cover_art_only`; `bad_header` if `stream_index` is none of them.
    """
    videos = [s for s in container.streams if s.type == "video"]
    if stream_index is not None:
        for stream in videos:
            if stream.index == stream_index:
                return stream
        raise MediaError("bad_header", f"{uri}: stream {stream_index} is not one of its video streams")
    moving = moving_streams(container)
    if len(moving) > 1 and container.metadata.get("major_brand", "").strip() in HEIF_BRANDS:
        raise MediaError(
            "unsupported_codec", f"{uri}: a HEIF image of {len(moving)} tiles, which are not put together here"
        )
    if not moving:
        if videos:
            raise MediaError("cover_art_only", f"{uri}: its only picture is cover art")
        if any(s.type == "audio" for s in container.streams):
            raise MediaError("audio_only", f"{uri}: sound but no video stream")
        if not len(container.streams) and _ends_early(uri):
            raise MediaError("truncated_header", f"{uri}: the file ends before its header does")
        raise MediaError("no_video_stream", f"{uri}: a {container.format.name} container without a video stream")
    from av.stream import Disposition

    marked = [s for s in moving if s.disposition & Disposition.default] or moving
    return max(marked, key=lambda s: (_area(s), -s.index))


def moving_streams(container: Any) -> list[Any]:
    """Video streams that are not cover art or thumbnails."""
    from av.stream import Disposition

    art = Disposition.attached_pic | Disposition.timed_thumbnails
    return [s for s in container.streams if s.type == "video" and not s.disposition & art]


def _area(stream: Any) -> int:
    context = stream.codec_context
    return 0 if context is None else context.width * context.height


def check_decodable(stream: Any, uri: str) -> None:
    """Raise MediaError `unsupported_codec`, `encrypted` or `oversized` where no picture can come."""
    context = stream.codec_context
    if getattr(stream, "codec_tag", "") in ("encv", "drmi"):
        raise MediaError("encrypted", f"{uri}: its video is encrypted ({stream.codec_tag})")
    if context is None:
        # PyAV's stream has no name where there is no decoder; the container's four letters may be left
        name = getattr(stream, "name", None) or str(getattr(stream, "codec_tag", "")).strip("\0 ") or "unknown"
        raise MediaError("unsupported_codec", f"{uri}: no decoder here for its video codec ({name})")
    if context.width * context.height > MAX_PIXELS:
        claim = f"the header claims {context.width}x{context.height} pixels"
        raise MediaError("oversized", f"{uri}: {claim}; at most {MAX_PIXELS} are decoded")
