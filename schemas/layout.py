"""Where the tables of a dataset are. `root` is a folder or an object store URI, without a trailing slash."""

from __future__ import annotations

BUCKET_KEY = b"vidpipe.bucket"
TEXT_ENCODER_KEY = b"vidpipe.text_encoder"
QUARANTINE = "quarantine.jsonl"
"""File under the root: a JSON line a row whose payload cannot be trusted: table, version, row_id, key (hex), reason."""


def table_uri(root: str, name: str) -> str:
    """URI of a table by its name relative to the dataset, such as `clips` or `latents/dct/17x64x96`."""
    return f"{root.rstrip('/')}/{name}.lance"


def outcomes_name(stage: str) -> str:
    """`outcomes/<stage>`."""
    return f"outcomes/{stage}"


def scores_name(scorer: str) -> str:
    """`scores/<scorer>`."""
    return f"scores/{scorer}"


def text_name(encoder: str) -> str:
    """`text/<encoder>`."""
    return f"text/{encoder}"


def latents_name(space: str, bucket: object) -> str:
    """`latents/<space>/<FxHxW>`."""
    return f"latents/{space}/{bucket}"


def stage_table_name(stage: str) -> str:
    """`tables/<stage>`: what a table stage made."""
    return f"tables/{stage}"


def recipe_path(root: str, fingerprint: str) -> str:
    """Resolved recipe of a run."""
    return f"{root.rstrip('/')}/recipes/{fingerprint}.toml"
