"""The tables of a dataset. Each has one writer; columns of another stage are another table under the same id."""

from __future__ import annotations

import pyarrow as pa

from schemas.columns import ID, Column, TableSpec

_PROVENANCE = (
    Column(
        name="fingerprint",
        type=pa.string(),
        nullable=False,
        meaning="what computed this row: stage, version, parameters",
    ),
    Column(
        name="unit_id",
        type=pa.string(),
        nullable=False,
        meaning="unit of work that wrote this row; empty in the sentinel row",
    ),
)

VIDEOS = TableSpec(
    name="videos",
    key="video_id",
    meaning="a row a source: a file, an image, a member of an archive",
    columns=(
        Column(name="video_id", type=ID, nullable=False, meaning="hash of size and sampled content"),
        Column(name="uris", type=pa.list_(pa.string()), meaning="everywhere this content was found, sorted"),
        Column(
            name="etags",
            type=pa.list_(pa.string()),
            meaning="etag, or size and mtime, of each of `uris` when it was read",
        ),
        Column(name="size_bytes", type=pa.int64(), unit="bytes", meaning="length of the file"),
        Column(name="kind", type=pa.string(), meaning="`video`, `image`, `sidecar`, `clip_table` or `other`"),
        Column(name="status", type=pa.string(), meaning="`kept` or `failed`, as in outcomes/ingest"),
        Column(name="reason", type=pa.string(), meaning="code of why it is not usable; empty when it is"),
        Column(name="message", type=pa.string(), meaning="that reason as a sentence; empty when usable"),
        Column(name="container", type=pa.string(), meaning="FFmpeg's demuxer name"),
        Column(name="stream_index", type=pa.int32(), meaning="index of the chosen video stream in its container"),
        Column(name="num_video_streams", type=pa.int32(), meaning="video streams, cover art not counted"),
        Column(name="codec", type=pa.string(), meaning="FFmpeg's codec name"),
        Column(name="profile", type=pa.string(), meaning="codec profile; null if the header has none"),
        Column(name="pix_fmt", type=pa.string(), meaning="FFmpeg's pixel format name"),
        Column(
            name="coded_width", type=pa.int32(), unit="px", meaning="stored width, before rotation and pixel aspect"
        ),
        Column(name="coded_height", type=pa.int32(), unit="px", meaning="stored height"),
        Column(name="width", type=pa.int32(), unit="px", meaning="width as displayed, after rotation and pixel aspect"),
        Column(name="height", type=pa.int32(), unit="px", meaning="height as displayed"),
        Column(name="sar_num", type=pa.int32(), meaning="pixel aspect numerator; 1 where the stream has none"),
        Column(name="sar_den", type=pa.int32(), meaning="pixel aspect denominator"),
        Column(
            name="rotation",
            type=pa.int32(),
            unit="degrees",
            meaning="clockwise turn that shows the picture upright: 0, 90, 180, 270",
        ),
        Column(name="hflip", type=pa.bool_(), meaning="mirror left to right after the rotation"),
        Column(name="time_base_num", type=pa.int32(), unit="s", meaning="stream time base numerator"),
        Column(name="time_base_den", type=pa.int32(), unit="1/s", meaning="stream time base denominator"),
        Column(name="start_pts", type=pa.int64(), unit="pts", meaning="least presentation time in the index"),
        Column(
            name="end_pts",
            type=pa.int64(),
            unit="pts",
            meaning="greatest presentation time plus its duration, exclusive",
        ),
        Column(name="duration_seconds", type=pa.float64(), unit="s", meaning="from start_pts to end_pts"),
        Column(
            name="header_seconds",
            type=pa.float64(),
            unit="s",
            meaning="what the header claims; null if it claims nothing",
        ),
        Column(name="num_packets", type=pa.int64(), meaning="video packets in the index"),
        Column(name="num_keyframes", type=pa.int64(), meaning="packets flagged as keyframes"),
        Column(name="avg_fps", type=pa.float64(), unit="frames/s", meaning="packets over duration"),
        Column(name="vfr", type=pa.bool_(), meaning="frame times are not evenly spaced"),
        Column(name="interlaced", type=pa.bool_(), meaning="the header says fields; null if unknown"),
        Column(name="color_range", type=pa.string(), meaning="`tv` or `pc`; null if unset"),
        Column(name="color_space", type=pa.string(), meaning="matrix, FFmpeg's name; null if unset"),
        Column(name="color_transfer", type=pa.string(), meaning="transfer, FFmpeg's name; null if unset"),
        Column(name="color_primaries", type=pa.string(), meaning="primaries, FFmpeg's name; null if unset"),
        Column(name="has_audio", type=pa.bool_(), meaning="an audio stream is present"),
        *_PROVENANCE,
    ),
)

CLIPS = TableSpec(
    name="clips",
    key="clip_id",
    meaning="a row a clip: where it is in its video; the scorers of the analyze pass add their columns",
    columns=(
        Column(name="clip_id", type=ID, nullable=False, meaning="video, stream, exact span, user's crop"),
        Column(name="video_id", type=ID, nullable=False, meaning="row of `videos`"),
        Column(name="stream_index", type=pa.int32(), meaning="video stream in its container"),
        Column(name="start_pts", type=pa.int64(), unit="pts", meaning="first frame's pts"),
        Column(
            name="end_pts", type=pa.int64(), unit="pts", meaning="exclusive: the last frame's pts plus its duration"
        ),
        Column(name="time_base_num", type=pa.int32(), unit="s", meaning="time base numerator"),
        Column(name="time_base_den", type=pa.int32(), unit="1/s", meaning="time base denominator"),
        Column(name="start_seconds", type=pa.float64(), unit="s", meaning="start_pts in seconds"),
        Column(name="end_seconds", type=pa.float64(), unit="s", meaning="end_pts in seconds"),
        Column(name="duration_seconds", type=pa.float64(), unit="s", meaning="end less start"),
        Column(name="num_frames", type=pa.int32(), meaning="frames decoded in the span"),
        Column(name="fps", type=pa.float64(), unit="frames/s", meaning="num_frames over duration"),
        Column(
            name="width",
            type=pa.int32(),
            unit="px",
            meaning="as displayed, after rotation, pixel aspect and user's crop",
        ),
        Column(name="height", type=pa.int32(), unit="px", meaning="as displayed"),
        Column(
            name="user_crop",
            type=pa.list_(pa.int32()),
            unit="px",
            meaning="x, y, width, height in displayed pixels; null if none was given",
        ),
        Column(
            name="shot_index",
            type=pa.int32(),
            meaning="shot in its video, from 0; -1 for a span that a clip table gave",
        ),
        Column(name="window_index", type=pa.int32(), meaning="window in its shot, from 0"),
        Column(name="given_caption", type=pa.string(), meaning="caption that a clip table gave; else null"),
        Column(
            name="damaged_fraction",
            type=pa.float32(),
            unit="fraction",
            meaning="frames of the span that the decoder reported damaged, in [0, 1]",
        ),
        Column(name="decoder", type=pa.string(), meaning="back end that decoded it"),
        Column(
            name="packets",
            type=pa.binary(),
            unit="bytes",
            meaning="times and flags of the packets that it is decoded from (vidpipe.media.packets), so that nobody "
            "reads the file through for them; null where decoding ended early",
        ),
        *_PROVENANCE,
    ),
)

SCORES = TableSpec(
    name="scores",
    key="clip_id",
    meaning="a row a clip: the columns of a scorer that was run later",
    columns=(Column(name="clip_id", type=ID, nullable=False, meaning="row of `clips`"), *_PROVENANCE),
)

CAPTIONS = TableSpec(
    name="captions",
    key="caption_id",
    meaning="a row a caption; a clip has several, each with its source",
    columns=(
        Column(name="caption_id", type=ID, nullable=False, meaning="clip, source, text"),
        Column(name="clip_id", type=ID, nullable=False, meaning="row of `clips`"),
        Column(name="text_id", type=ID, nullable=False, meaning="hash of the text; row of `text/<encoder>`"),
        Column(
            name="source",
            type=pa.string(),
            nullable=False,
            meaning="captioner's name, such as `sidecar` or `openai:MODEL`",
        ),
        Column(name="text", type=pa.string(), nullable=False, meaning="the caption"),
        Column(name="language", type=pa.string(), meaning="BCP 47 tag; null if unknown"),
        Column(
            name="prompt_tokens",
            type=pa.int64(),
            unit="tokens",
            meaning="input tokens billed; 0 where there is no model",
        ),
        Column(name="completion_tokens", type=pa.int64(), unit="tokens", meaning="output tokens billed"),
        *_PROVENANCE,
    ),
)

TEXT = TableSpec(
    name="text",
    key="text_id",
    meaning="a row a distinct caption: its embedding; metadata vidpipe.text_encoder names encoder, dim and dtype",
    columns=(
        Column(name="text_id", type=ID, nullable=False, meaning="hash of the text"),
        Column(name="text", type=pa.string(), nullable=False, meaning="the caption; empty for the unconditional one"),
        Column(
            name="num_tokens", type=pa.int32(), nullable=False, unit="tokens", meaning="rows L of the embedding [L, D]"
        ),
        Column(name="embedding_crc32", type=pa.uint32(), nullable=False, meaning="crc32 of the embedding's bytes"),
        Column(
            name="embedding",
            type=pa.large_binary(),
            nullable=False,
            blob=True,
            unit="bytes",
            meaning="[L, D] little endian, C order",
        ),
        *_PROVENANCE,
    ),
)

LATENTS = TableSpec(
    name="latents",
    key="latent_id",
    meaning="a row a cached latent; metadata vidpipe.latent_space and vidpipe.bucket say how to read it",
    columns=(
        Column(name="latent_id", type=ID, nullable=False, meaning="clip, fps, geometry, encode fingerprint"),
        Column(name="clip_id", type=ID, nullable=False, meaning="row of `clips`"),
        Column(name="fps", type=pa.float64(), unit="frames/s", meaning="rate at which frames were sampled"),
        Column(name="start_seconds", type=pa.float64(), unit="s", meaning="time of the first frame in the source"),
        Column(
            name="crop",
            type=pa.list_(pa.int32()),
            unit="px",
            meaning="x, y, width, height that was scaled to the bucket, in displayed pixels",
        ),
        Column(
            name="frames_dropped",
            type=pa.int32(),
            unit="frames",
            meaning="trailing frames of the clip, at `fps`, that the bucket has no place for",
        ),
        Column(name="scale", type=pa.float32(), meaning="bucket height over crop height; above 1 is upscaling"),
        Column(
            name="cropped_fraction",
            type=pa.float32(),
            unit="fraction",
            meaning="picture area cut off to reach the bucket's aspect, in [0, 1)",
        ),
        Column(name="latent_crc32", type=pa.uint32(), nullable=False, meaning="crc32 of the latent's bytes"),
        Column(
            name="latent",
            type=pa.large_binary(),
            nullable=False,
            blob=True,
            unit="bytes",
            meaning="[C, T, H, W], the space's dtype, little endian, C order, normalised",
        ),
        *_PROVENANCE,
    ),
)

NEAR_DUPLICATES = TableSpec(
    name="near_duplicates",
    key="clip_id",
    meaning="near-duplicate groups over perceptual hashes",
    columns=(
        Column(name="clip_id", type=ID, nullable=False, meaning="row of `clips`"),
        Column(
            name="duplicate_group",
            type=ID,
            nullable=False,
            meaning="least clip_id of the group; its own for a clip without a twin",
        ),
        Column(
            name="is_duplicate",
            type=pa.bool_(),
            nullable=False,
            meaning="another clip of the group is kept in its place",
        ),
        *_PROVENANCE,
    ),
)

SPLIT = TableSpec(
    name="split",
    key="clip_id",
    meaning="held-out share, by hash of the near-duplicate group",
    columns=(
        Column(name="clip_id", type=ID, nullable=False, meaning="row of `clips`"),
        Column(name="split", type=pa.string(), nullable=False, meaning="`train` or `heldout`"),
        *_PROVENANCE,
    ),
)

OUTCOMES = TableSpec(
    name="outcomes",
    key="id",
    meaning="what a stage did with each row; see schemas.outcomes",
    columns=(
        Column(name="id", type=ID, nullable=False, meaning="input row: video_id, clip_id or text_id"),
        Column(
            name="item",
            type=pa.string(),
            nullable=False,
            meaning="tells apart outcomes of one row, such as the bucket; else empty",
        ),
        Column(name="status", type=pa.string(), nullable=False, meaning="`kept`, `rejected` or `failed`"),
        Column(name="reason", type=pa.string(), nullable=False, meaning="short code; empty when kept"),
        Column(name="rule", type=pa.string(), nullable=False, meaning="term of the expression that was false"),
        Column(name="value", type=pa.string(), nullable=False, meaning="values of that term's columns"),
        Column(name="expression_hash", type=pa.string(), nullable=False, meaning="of the expression that rejected it"),
        Column(name="message", type=pa.string(), nullable=False, meaning="a sentence for a person"),
        Column(name="seconds", type=pa.float64(), nullable=False, unit="s", meaning="wall time spent"),
        Column(name="host", type=pa.string(), nullable=False, meaning="machine that did it"),
        Column(name="finished_at", type=pa.timestamp("us", tz="UTC"), nullable=False, meaning="when"),
        *_PROVENANCE,
    ),
)
