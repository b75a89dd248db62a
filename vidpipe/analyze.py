"""Analyze a video: one sequential decode feeds shot detection and all scores, and gives the rows of `clips`.

Every frame is decoded once; detectors see every frame at a short side of `shot_short_side`, scorers sample frames at
`short_side`, or smaller ones in grey where that is enough, and no other pictures are made. What is kept until the end
is each frame's time and a few numbers a sample, so that memory does not grow with resolution and stays in the tens of
MB for ten hours. Spans that a clip table gave skip shot detection and keep their frames exactly.

Seconds are stream time, pts x time base, here and in clip tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from schemas.columns import Column
from schemas.config import build, to_mapping
from schemas.errors import UserError

if TYPE_CHECKING:
    from vidpipe.scorers.base import Scorer
    from vidpipe.shots.detector import ShotDetector
    from vidpipe.shots.windows import WindowRule

VERSION = 2
SCORERS = ("blur", "letterbox", "luminance", "motion", "phash", "static_ratio")


@dataclass(frozen=True, kw_only=True)
class AnalyzeConfig:
    """`[analyze]`: shots, clips and scores.

    Attributes:
        detectors: shot detectors by registry name; a cut or transition that any of them sees counts.
        detector_params: parameters by detector, such as `{adaptive = {ratio = 3.5}}`.
        min_seconds, max_seconds: length of a clip; a longer shot becomes several, see `vidpipe.shots.windows`.
        trim_frames: frames left out on each side of a cut.
        window: how a long shot is cut: `equal` lengths, or `fixed` ones of `max_seconds` with a remainder.
        scorers: by registry name.
        scorer_params: parameters by scorer, such as `{motion = {samples_per_second = 4}}`.
        short_side: of the frames that are decoded, in pixels; smaller videos keep their size.
        shot_short_side: of the frames that detectors see, in pixels.
    """

    detectors: tuple[str, ...] = ("adaptive", "structure", "fades")
    detector_params: dict[str, dict[str, Any]] = field(default_factory=dict)
    min_seconds: float = 1.0
    max_seconds: float = 10.0
    trim_frames: int = 1
    window: Literal["equal", "fixed"] = "equal"
    scorers: tuple[str, ...] = SCORERS
    scorer_params: dict[str, dict[str, Any]] = field(default_factory=dict)
    short_side: int = 256
    shot_short_side: int = 64

    def __post_init__(self) -> None:
        if not 32 <= self.shot_short_side <= self.short_side:
            raise UserError(
                f"expected 32 <= shot_short_side <= short_side, found {self.shot_short_side} and {self.short_side}"
            )
        self.rule()
        for kind, names, params in self._plugins():
            for name in {n for n in names if names.count(n) > 1}:
                raise UserError(f"{kind}s: {name!r} is named twice")
            for name in params:
                if name not in names:
                    raise UserError(f"{kind}_params.{name}: {name!r} is not among {kind}s = {list(names)}")
            for name in names:
                _check_plugin(kind, name, params.get(name, {}))

    def _plugins(self) -> tuple[tuple[str, tuple[str, ...], dict[str, dict[str, Any]]], ...]:
        return (
            ("detector", self.detectors, self.detector_params),
            ("scorer", self.scorers, self.scorer_params),
        )

    def rule(self) -> WindowRule:
        """How shots become clips."""
        from vidpipe.shots.windows import WindowRule

        return WindowRule(
            min_seconds=self.min_seconds,
            max_seconds=self.max_seconds,
            trim_frames=self.trim_frames,
            window=self.window,
        )


def _check_plugin(kind: str, name: str, params: dict[str, Any]) -> None:
    """Refuse an unknown name or parameter; a known name without parameters is not imported."""
    from vidpipe import registry

    if params or name not in (registry.SCORERS if kind == "scorer" else registry.SHOT_DETECTORS):
        _make(kind, name, params)


def _make(kind: str, name: str, params: dict[str, Any]) -> Any:
    from vidpipe import registry

    cls = registry.load_scorer(name) if kind == "scorer" else registry.load_shot_detector(name)
    return cls(build(cls.Config, params, f"{kind}_params.{name}"))


def make_scorers(config: AnalyzeConfig) -> list[Scorer]:
    """Fresh scorers, in the recipe's order."""
    return [_make("scorer", name, config.scorer_params.get(name, {})) for name in config.scorers]


def make_detectors(config: AnalyzeConfig) -> list[ShotDetector]:
    """Fresh detectors, in the recipe's order."""
    return [_make("detector", name, config.detector_params.get(name, {})) for name in config.detectors]


def scorer_columns(config: AnalyzeConfig) -> tuple[Column, ...]:
    """Columns that the scorers add to `clips`."""
    return tuple(column for scorer in make_scorers(config) for column in scorer.columns)


def fingerprint_params(config: AnalyzeConfig) -> Mapping[str, Any]:
    """What shapes the rows: the config with every plug-in's version and parameters, defaults written out."""
    plugins: list[Any] = [*make_scorers(config), *make_detectors(config)]
    versions = {p.name: [p.version, to_mapping(p.config)] for p in plugins}
    return {**to_mapping(config), "version": VERSION, "plugins": versions}


@dataclass(frozen=True, kw_only=True)
class AnalyzeResult:
    """What a video gave.

    Attributes:
        clips: rows of `schemas.tables.CLIPS` with the scorers' columns, without provenance.
        message: what a person should know: damage, spans without frames, why there is no clip; else empty.
        num_frames: decoded.
    """

    clips: list[dict[str, Any]]
    message: str = ""
    num_frames: int = 0


@dataclass(frozen=True, kw_only=True)
class GivenSpan:
    """A span of a clip table, in stream seconds; `end_seconds` is exclusive, and None is the video's end.

    Where `pts` (start, and end exclusive, in the stream's time base) is known, as for a row of `clips`, it decides.
    """

    start_seconds: float = 0.0
    end_seconds: float | None = None
    caption: str | None = None
    crop_xywh: tuple[int, int, int, int] | None = None
    pts: tuple[int, int] | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> GivenSpan:
        """From a row of a clip table; null start is the video's first frame."""
        start, end, crop = row.get("start_seconds"), row.get("end_seconds"), row.get("crop_xywh")
        if start is not None and end is not None and end <= start:
            raise UserError(f"clip table: expected start < end, found {start} and {end}")
        return cls(
            start_seconds=float("-inf") if start is None else float(start),
            end_seconds=None if end is None else float(end),
            caption=row.get("caption"),
            crop_xywh=None if crop is None else (int(crop[0]), int(crop[1]), int(crop[2]), int(crop[3])),
            pts=(int(row["start_pts"]), int(row["end_pts"])) if row.get("start_pts") is not None else None,
        )


def analyze_video(
    uri: str,
    facts_row: Mapping[str, Any],
    config: AnalyzeConfig,
    spans: Sequence[Mapping[str, Any]] | None = None,
    *,
    decoder: str = "auto",
) -> AnalyzeResult:
    """Decode a video once and return its clips.

    Args:
        facts_row: its row of `videos`; a whole one saves probing the file again.
        spans: rows of a clip table (start_seconds, end_seconds, caption); None or empty to detect shots.
    Raises:
        MediaError: no frame could be decoded, or reading failed. After the first frame, other errors end the video
            there: what was decoded is analysed, and `message` says so.
    """
    from vidpipe.media.decode import open_video
    from vidpipe.media.errors import MediaError
    from vidpipe.media.facts import VideoFacts
    from vidpipe.media.packets import seek_margin

    given = [GivenSpan.of(row) for row in spans or ()]
    facts = VideoFacts.of(uri, facts_row)
    with open_video(uri, facts_row["stream_index"], decoder=decoder, facts=facts) as reader:
        pass_ = make_pass(facts_row, config, given, decoder_name=reader.decoder_name)
        try:
            for batch in reader.scan(max_short_side=config.short_side, glance=pass_.glance()):
                pass_.push(batch)
        except MediaError as error:
            if not pass_.num_frames or error.reason in ("io_error", "deadline"):
                raise
            return pass_.finish(uri, cut_short=str(error))
        if not pass_.num_frames:
            raise MediaError("no_frames", f"{uri}: the decoder gave no frame")
        result = pass_.finish(uri)
        index, margin = reader.index(), seek_margin(reader.facts)
        for row in result.clips:
            row["packets"] = index.part(row["start_pts"], row["end_pts"], margin).to_bytes()
    return result


def analyze_batches(
    batches: Iterable[Any],
    facts_row: Mapping[str, Any],
    config: AnalyzeConfig,
    spans: Sequence[Mapping[str, Any]] | None = None,
    *,
    uri: str = "video",
    decoder_name: str = "",
) -> AnalyzeResult:
    """The same on frames that are decoded already: FrameBatches of the whole video, in presentation order."""
    pass_ = make_pass(facts_row, config, [GivenSpan.of(row) for row in spans or ()], decoder_name=decoder_name)
    for batch in batches:
        pass_.push(batch)
    return pass_.finish(uri)


def make_pass(
    facts_row: Mapping[str, Any], config: AnalyzeConfig, given: Sequence[GivenSpan], *, decoder_name: str
) -> Any:
    """An AnalyzePass with fresh scorers, and with detectors where no spans are given."""
    from vidpipe.analyze_pass import AnalyzePass, Source

    still = facts_row.get("kind") == "image"
    return AnalyzePass(
        source=Source(
            video_id=facts_row["video_id"],
            stream_index=facts_row["stream_index"],
            time_base=Fraction(facts_row["time_base_num"], facts_row["time_base_den"]),
            width=facts_row["width"],
            height=facts_row["height"],
            still=still,
        ),
        make_scorers=lambda: make_scorers(config),
        detectors=[] if still or given else make_detectors(config),
        rule=config.rule(),
        shot_short_side=config.shot_short_side,
        given=given,
        decoder_name=decoder_name,
    )
