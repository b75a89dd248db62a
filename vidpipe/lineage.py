"""Where a latent comes from, in one query over the tables."""

from __future__ import annotations

from typing import Any

from schemas.errors import UserError
from vidpipe.store.dataset import Dataset

_SQL = """
SELECT lower(hex(l.latent_id)) AS latent_id, '{table}' AS "table", l.fingerprint AS encode_fingerprint, l.unit_id,
       l.fps, l.start_seconds AS first_frame_seconds, l.crop, l.scale, l.frames_dropped,
       lower(hex(c.clip_id)) AS clip_id, c.fingerprint AS analyze_fingerprint, c.start_pts, c.end_pts,
       c.start_seconds, c.end_seconds, c.shot_index, c.window_index, c.decoder,
       lower(hex(v.video_id)) AS video_id, v.uris, v.codec, v.width, v.height, v.size_bytes
FROM "{table}" l
LEFT JOIN (SELECT * FROM clips QUALIFY row_number() OVER (PARTITION BY clip_id ORDER BY fingerprint) = 1) c
    ON l.clip_id = c.clip_id
LEFT JOIN videos v ON c.video_id = v.video_id
WHERE starts_with(lower(hex(l.latent_id)), '{prefix}')
"""


def lineage(root: str, latent_id: str) -> dict[str, Any]:
    """Facts of the latent, its clip, its file and its captions.

    Args:
        latent_id: hex digits, or a prefix that names one latent.
    Raises:
        UserError: no such latent, or several.
    """
    prefix = latent_id.lower()
    if not prefix or set(prefix) - set("0123456789abcdef"):
        raise UserError(f"latent {latent_id!r}: expected hex digits")
    dataset = Dataset(root).open()
    con = dataset.connect()
    found = []
    for table in (n for n in dataset.names() if n.startswith("latents/")):
        found += con.sql(_SQL.format(table=table, prefix=prefix)).to_arrow_table().to_pylist()
    if len(found) != 1:
        raise UserError(f"latent {latent_id!r}: {'no such latent' if not found else f'{len(found)} latents begin so'}")
    if "captions" in dataset.names():
        captions = con.execute("SELECT source, text FROM captions WHERE lower(hex(clip_id)) = ?", [found[0]["clip_id"]])
        found[0]["captions"] = [{"source": s, "text": t} for s, t in captions.fetchall()]
    return found[0]
