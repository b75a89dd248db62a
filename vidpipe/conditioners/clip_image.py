"""CLIP image embeddings of first and last frame, as Wan 2.1's image-to-video models take them.

The penultimate hidden state of `CLIPVisionModel`, [257, 1280] for ViT-H/14, after the checkpoint's own image processor,
which resizes on the host: the same values as `WanImageToVideoPipeline.encode_image`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from vidpipe.conditioners.base import Conditioner
from vidpipe.vaes.base import torch_dtype
from vidpipe.vaes.checkpoint import revision as folder_revision
from vidpipe.vaes.checkpoint import weight_files

if TYPE_CHECKING:
    import torch

    from schemas.buckets import Bucket
    from vidpipe.vaes.base import Vae


class ClipImage(Conditioner):
    """Embedding of the first frame.

    Args:
        source: folder or hub id of a `CLIPVisionModel` with its processor, or of a pipeline that has them in
            `image_encoder` and `image_processor`.
        dtype: of weights and computation.
    """

    name = "clip-image"
    column = "clip_image_embedding"
    meaning = "penultimate hidden state of CLIP's image encoder for the first frame, [tokens, width]"
    shown: Sequence[int] = (0,)

    def __init__(self, *, source: str = "", device: str = "cpu", dtype: str = "bfloat16") -> None:
        if not source:
            raise UserError(f"{self.name}: source must name the weights of CLIP's image encoder: a folder or a hub id")
        self.device, self.dtype = device, dtype
        self.folder = find(source, self.name)

    @functools.cached_property
    def revision(self) -> str:  # type: ignore[override]
        return folder_revision(self.folder)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "dtype": self.dtype}

    @functools.cached_property
    def _config(self) -> Any:
        import transformers

        config = transformers.AutoConfig.from_pretrained(self.folder)
        return getattr(config, "vision_config", config)

    def shape(self, vae: Vae, bucket: Bucket) -> tuple[int, ...]:
        patches = (self._config.image_size // self._config.patch_size) ** 2
        return len(self.shown) * (patches + 1), self._config.hidden_size

    @functools.cached_property
    def model(self) -> Any:
        """The vision model, in evaluation mode on its device."""
        import transformers

        model = transformers.CLIPVisionModel.from_pretrained(self.folder, dtype=torch_dtype(self.dtype))
        return model.eval().requires_grad_(False).to(self.device)

    @functools.cached_property
    def processor(self) -> Any:
        """The checkpoint's image processor."""
        import transformers

        beside = self.folder.parent / "image_processor"
        return transformers.AutoImageProcessor.from_pretrained(beside if beside.is_dir() else self.folder)

    def encode(self, frames_BCTHW: torch.Tensor, vae: Vae) -> torch.Tensor:
        import torch

        images = [f for clip in frames_BCTHW for f in clip[:, list(self.shown)].unbind(1)]
        pixels = self.processor(
            images=[i.cpu().numpy() for i in images], return_tensors="pt", input_data_format="channels_first"
        )
        with torch.no_grad():
            states = self.model(
                pixel_values=pixels["pixel_values"].to(self.device, torch_dtype(self.dtype)), output_hidden_states=True
            ).hidden_states[-2]
        return states.unflatten(0, (-1, len(self.shown))).flatten(1, 2).to(torch_dtype(vae.space.dtype))


class ClipFirstLast(ClipImage):
    """Embeddings of first and last frame, one after the other."""

    name = "clip-first-last"
    column = "clip_first_last_embedding"
    meaning = "penultimate hidden states of CLIP's image encoder for first and last frame, [2 tokens, width]"
    shown = (0, -1)


def find(source: str, name: str) -> Path:
    """Folder with the vision model's weights; of a pipeline, its `image_encoder`."""
    root = Path(source)
    if not root.is_dir():
        from huggingface_hub import snapshot_download

        patterns = [f"{f}{p}" for f in ("", "image_encoder/", "image_processor/") for p in ("*.json", "*.safetensors")]
        repository, _, commit = source.partition("@")
        try:
            root = Path(snapshot_download(repository, revision=commit or None, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            text = str(error).strip().splitlines()[0]
            raise UserError(f"{name}: {source!r} is no folder, and the hub does not give it: {text}") from None
    for folder in (root / "image_encoder", root):
        if (folder / "config.json").is_file() and weight_files(folder):
            return folder
    raise UserError(f"{name}: expected config.json and *.safetensors in {root} or its folder `image_encoder`")
