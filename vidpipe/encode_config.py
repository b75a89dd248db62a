"""`[encode]`: what the latent cache holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from schemas.buckets import Bucket, BucketSet, parse_buckets
from schemas.errors import UserError
from vidpipe.bucketing import Limits, resolution_groups
from vidpipe.conditioners.base import ConditionerConfig, wanted
from vidpipe.media.config import DecodeConfig

if TYPE_CHECKING:
    from vidpipe.vaes.base import Vae

NATIVE = "native"
DEFAULT_BUCKETS = BucketSet(areas=(480 * 832,), frames=(17, 49, 81))


@dataclass(frozen=True, kw_only=True)
class EncodeConfig:
    """`[encode]` of a recipe.

    Attributes:
        where: selection expression.
        vae: registry name; `source` is its weights (path or hub id), `params` its own parameters.
        buckets: list of `FxHxW`; or leave it out and give `bucket_set`, from area budgets (480 x 832 by default).
        patch: patch of the model to be trained, T x H x W latent elements: heights and widths are multiples of stride
            times patch.
        fps: sampling rate, such as `16` or `30000/1001`; `native` takes every frame.
        resolutions: `one` bucket a clip, or `each`: the best bucket of each resolution (areas within 1.5).
        max_upscale: greatest linear scale, bucket over crop; 1 never scales up.
        max_cropped: greatest share of the picture's area cut off to reach a bucket's aspect.
        max_dropped: greatest share of a clip's frames dropped at its end.
        letterbox: crop black bars off, by the letterbox scorer's columns.
        stills_from_video: let a moving clip go to a bucket of one frame.
        conditioning: conditioners (`vidpipe.conditioners`) whose columns are stored beside the latent.
        for_model: a model of `schemas.conditioning.MODELS`, whose conditioners are added.
        max_damaged: greatest share of a latent's frames that may be damaged.
        decode: rules of decoding.
        batch_frames: frames in one call of the VAE, over clips, halved when memory runs out; 0 for as many as fill a
            GPU (`encode.GPU_BATCH_PIXELS`) and one clip on a CPU. No effect on a latent's meaning, and not in the
            fingerprint.
    """

    where: str = "true"
    vae: str = "dct"
    source: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    buckets: tuple[str, ...] = ()
    bucket_set: BucketSet | None = None
    patch: tuple[int, ...] = (1, 2, 2)
    fps: str | int | float = "16"
    resolutions: Literal["one", "each"] = "one"
    max_upscale: float = 1.0
    max_cropped: float = 0.5
    max_dropped: float = 1.0
    letterbox: bool = True
    stills_from_video: bool = False
    conditioning: tuple[ConditionerConfig, ...] = ()
    for_model: str = ""
    max_damaged: float = 0.0
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    batch_frames: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fps", str(self.fps))  # 16 is written without quotes, too
        parse_fps(str(self.fps))
        wanted(self.conditioning, self.for_model)
        if self.buckets and self.bucket_set:
            raise UserError("encode: give buckets or bucket_set, not both")
        for text in self.buckets:
            Bucket.parse(text)
        if len(self.patch) != 3 or min(self.patch) < 1:
            raise UserError(f"encode.patch: expected three whole numbers such as [1, 2, 2], found {list(self.patch)}")
        if self.max_upscale <= 0:
            raise UserError(f"encode.max_upscale must be above 0, found {self.max_upscale}")
        for name in ("max_cropped", "max_dropped", "max_damaged"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"encode.{name} must be in [0, 1], found {getattr(self, name)}")
        if self.batch_frames < 0:
            raise UserError(f"encode.batch_frames must be at least 0, found {self.batch_frames}")

    @property
    def rate(self) -> Fraction | None:
        """`fps` as a fraction; None for native."""
        return parse_fps(str(self.fps))

    @property
    def limits(self) -> Limits:
        """What a clip may lose or gain."""
        return Limits(
            max_upscale=self.max_upscale,
            max_cropped=self.max_cropped,
            max_dropped=self.max_dropped,
            letterbox=self.letterbox,
            stills_from_video=self.stills_from_video,
        )

    def bucket_list(self, vae: Vae) -> list[Bucket]:
        """The buckets, checked against the VAE's rules; BucketMismatch names the nearest valid one."""
        if self.buckets:
            found = parse_buckets(self.buckets, vae.space, self.patch)
        else:
            found = (self.bucket_set or DEFAULT_BUCKETS).buckets(vae.space, self.patch)
        return [vae.check_bucket(bucket, self.patch) for bucket in found]

    def bucket_groups(self, vae: Vae) -> list[list[Bucket]]:
        """Buckets by resolution; a clip gets one latent a group."""
        buckets = self.bucket_list(vae)
        return [buckets] if self.resolutions == "one" else resolution_groups(buckets)

    def identity(self) -> dict[str, Any]:
        """What shapes a latent besides VAE, conditioners and the clip's own geometry: JSON values.

        Bucket and crop are not in it: they are in the latent_id.
        """
        return {
            "resize": RESIZE_RULE,
            "fps_rule": FPS_RULE,
            "fps": self.fps_text,
            "hdr": self.decode.hdr,
            "interlaced": self.decode.interlaced,
        }

    @property
    def fps_text(self) -> str:
        """`native`, or the rate as `n/d`."""
        rate = self.rate
        return NATIVE if rate is None else f"{rate.numerator}/{rate.denominator}"


RESIZE_RULE = "centre-crop,bicubic-antialias,1"
FPS_RULE = "frame-on-screen,ceil,1"


def parse_fps(text: str) -> Fraction | None:
    """`16`, `16000/1001`, or `native` (None)."""
    if text == NATIVE:
        return None
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"encode.fps {text!r}: expected a number, a fraction such as 30000/1001, or native") from None
    if rate <= 0:
        raise UserError(f"encode.fps {text!r}: must be above 0")
    return rate
