"""Preview: what a cached latent still shows, beside the source it came from."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from schemas.latent_spaces import LatentSpace
from schemas.layout import BUCKET_KEY
from schemas.registry import load_vae
from vidpipe.store.dataset import Dataset

if TYPE_CHECKING:
    import torch

HEX = set("0123456789abcdef")
MAX_FPS_DENOMINATOR = 1001


def preview(root: str, clip_id: str, output: str, device: str = "") -> Iterator[str]:
    """Write source (left) and decoded latent (right) of a clip as MP4, one file a latent.

    Args:
        clip_id: hex digits, or a prefix that names one clip.
        output: the file; of a clip with several latents, later ones go beside it, named by table.
        device: for the VAE; empty for a GPU if there is one.
    Yields:
        a line a file: where it is, the latent's table and PSNR.
    Raises:
        UserError: no such clip, several of that prefix, no latent of it, or an output that cannot be written.
    """
    dataset = Dataset(root).open()
    clip = find_clip(dataset, clip_id)
    tables = [n for n in dataset.names() if n.startswith("latents/")]
    rows = [(name, row) for name in tables for row in latents_of(dataset, name, clip["clip_id"])]
    if not rows:
        raise UserError(
            f"clip {clip['clip_id'].hex()}: no latent of it in {root}; it was rejected, or encode has not run"
        )
    for i, (name, row) in enumerate(rows):
        path = Path(output) if i == 0 else Path(output).with_stem(f"{Path(output).stem}-{i}")
        yield one(dataset, name, clip, row, path, device)


def find_clip(dataset: Dataset, prefix: str) -> dict[str, Any]:
    """The clip's row with its video's `uris` and `etags`."""
    digits = prefix.lower()
    if not digits or set(digits) - HEX:
        raise UserError(f"clip {prefix!r}: expected hex digits")
    sql = (
        "SELECT c.*, v.uris, v.etags FROM clips c JOIN videos v USING (video_id) "
        "WHERE starts_with(lower(hex(c.clip_id)), ?) "
        "QUALIFY row_number() OVER (PARTITION BY c.clip_id ORDER BY c.fingerprint, v.fingerprint) = 1 LIMIT 2"
    )
    if not dataset.has("clips"):
        raise UserError(f"dataset {dataset.root}: no clips yet; run analyze first")
    table: Any = dataset.connect().sql(sql, params=[digits]).to_arrow_table()
    found = table.to_pylist()
    if len(found) != 1:
        raise UserError(
            f"clip {prefix!r}: {'no such clip' if not found else 'several clips begin so'} in {dataset.root}"
        )
    return found[0]


def latents_of(dataset: Dataset, name: str, clip_id: bytes) -> list[dict[str, Any]]:
    """All latents of a clip in one table, bytes included."""
    columns = ["latent_id", "fps", "start_seconds", "crop", "latent"]
    return dataset.read(name, columns, filter=f"clip_id = X'{clip_id.hex()}'").to_pylist()


def one(dataset: Dataset, name: str, clip: dict[str, Any], row: dict[str, Any], path: Path, device: str) -> str:
    """Preview of one latent."""
    import torch

    from vidpipe.vaes.base import psnr_db, torch_dtype

    metadata = dataset.table(name).schema.metadata
    space = LatentSpace.from_metadata(metadata, f"table {name} of {dataset.root}")
    bucket = metadata[BUCKET_KEY].decode()
    vae = load_vae(space.vae).for_space(space, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    shape = latent_shape(space, bucket)
    latent = torch.frombuffer(bytearray(row["latent"]), dtype=torch_dtype(space.dtype)).view(shape)
    decoded = vae.decode(latent[None])[0].cpu()
    source = source_frames(clip, row, bucket)
    write_mp4(path, torch.cat([source, decoded], 3).permute(1, 2, 3, 0), row["fps"] or 16.0)
    return f"{path}: {name}, source left, latent right, PSNR {psnr_db(source, decoded):.1f} dB"


def latent_shape(space: LatentSpace, bucket: str) -> tuple[int, ...]:
    """[C, T, H, W]."""
    from schemas.buckets import Bucket

    return Bucket.parse(bucket).latent_shape(space)


def source_frames(clip: dict[str, Any], row: dict[str, Any], bucket: str) -> torch.Tensor:
    """The frames that were encoded, decoded again: uint8 [3, T, H, W]."""
    from schemas.buckets import Bucket
    from vidpipe.feed import reference
    from vidpipe.media.decode import open_video
    from vidpipe.media.identity import location
    from vidpipe.media.packets import index_of
    from vidpipe.media.sampling import sample_pts

    shape = Bucket.parse(bucket)
    span = reference(clip)
    native = clip["num_frames"] == 1 or row["fps"] == clip["fps"]
    rate = None if native else Fraction(row["fps"]).limit_denominator(MAX_FPS_DENOMINATOR)
    with open_video(location(clip), span.stream_index, packets=index_of([clip])) as reader:
        pts = sample_pts(reader.frame_pts(span), None, span, rate, shape.num_frames)
        found = reader.frames(span, pts, size_hw=(shape.height, shape.width), crop_xywh=row["crop"])
    return found.frames_TCHW.cpu().transpose(0, 1)


def write_mp4(path: Path, frames_THWC: torch.Tensor, fps: float) -> None:
    """H.264 at high quality; UserError if the file cannot be written."""
    import av

    try:
        path.open("ab").close()
    except OSError as error:
        raise UserError(f"output {path}: cannot be written: {error.strerror}") from None
    with av.open(str(path), "w", format="mp4") as container:  # whatever its name is
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(MAX_FPS_DENOMINATOR))
        stream.height, stream.width = frames_THWC.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "16", "preset": "fast"}
        for frame in frames_THWC.numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame.copy(), "rgb24")))
        container.mux(stream.encode())
