"""Conditions equal what diffusers' image-to-video pipelines compute, on small random checkpoints."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from schemas import conditioning
from schemas.buckets import Bucket
from schemas.errors import SchemaMismatch, UserError
from vidpipe.conditioners.base import ConditionerConfig, make_conditioner, wanted
from vidpipe.conditioners.frames import FirstFrame, FirstLastFrame, ReferenceFrames
from vidpipe.encode import encode_clips, identity, latents_spec, table_metadata
from vidpipe.encode_config import EncodeConfig
from vidpipe.vaes.base import make_vae
from vidpipe.vaes.dct import DctVae

BUCKET = Bucket(9, 32, 48)


def frames(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, 9, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def pipeline_folder(tmp_path_factory) -> Path:
    """A small random Wan image-to-video pipeline: VAE, CLIP vision model and its processor."""
    import diffusers
    import transformers

    folder = tmp_path_factory.mktemp("wan-i2v")
    torch.manual_seed(0)
    diffusers.AutoencoderKLWan(base_dim=8, dim_mult=[1, 1, 2, 2], num_res_blocks=1).save_pretrained(folder / "vae")
    config = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14
    )
    transformers.CLIPVisionModel(config).save_pretrained(folder / "image_encoder")
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    transformers.CLIPImageProcessor(**size).save_pretrained(folder / "image_processor")
    return folder


@pytest.mark.parametrize("cls", [FirstFrame, FirstLastFrame])
def test_wan_condition_is_that_of_the_pipeline(pipeline_folder, cls):
    params = {"dtype": "float32", "latent_dtype": "float32"}
    vae = make_vae("wan2.1", source=str(pipeline_folder), params=params)
    x = frames().float() / 255 * 2 - 1
    image, last = x[:, :, :1], x[:, :, -1:]  # prepare_latents of WanImageToVideoPipeline
    if cls is FirstFrame:
        video = torch.cat([image, image.new_zeros(2, 3, 8, 32, 48)], 2)
    else:
        video = torch.cat([image, image.new_zeros(2, 3, 7, 32, 48), last], 2)
    with torch.no_grad():
        z = vae.model.encode(video).latent_dist.mode()
    mean, std = (
        torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.model.config.latents_mean, vae.model.config.latents_std)
    )
    found = cls().encode(frames(), vae)
    torch.testing.assert_close(found, (z - mean) * (1 / std), rtol=1e-5, atol=1e-5)
    assert found.shape[1:] == cls().shape(vae, BUCKET)


def test_dct_blanks_are_mid_grey():
    vae = DctVae()
    found = FirstFrame().encode(frames(), vae)
    assert torch.equal(found[:, :, :1], vae.encode(frames())[:, :, :1])  # causal: the first frame is the clip's
    grey = [vae.encode_raw(torch.full((1, 3, 9, 32, 48), g, dtype=torch.uint8))[0, :, 1, 0, 0] for g in (127, 128)]
    mean, std = (torch.tensor(v, dtype=torch.float64) for v in (vae.space.mean, vae.space.std))
    expected = (((grey[0] + grey[1]) / 2 - mean) / std).to(torch.bfloat16)
    assert torch.equal(found[0, :, 1, 0, 0], expected)
    both = FirstLastFrame().encode(frames(), vae)
    assert torch.equal(both[:, :, :2], found[:, :, :2]) and not torch.equal(both[:, :, 2], found[:, :, 2])


def test_reference_frames_are_images():
    vae = DctVae()
    found = ReferenceFrames(positions=(0.0, 0.5, 1.0)).encode(frames(), vae)
    expected = torch.cat([vae.encode(frames()[:, :, t : t + 1]) for t in (0, 4, 8)], 2)
    assert torch.equal(found, expected)
    assert found.shape[1:] == ReferenceFrames(positions=(0.0, 0.5, 1.0)).shape(vae, BUCKET) == (16, 3, 4, 6)
    with pytest.raises(UserError, match="fractions"):
        ReferenceFrames(positions=(2.0,))


@pytest.mark.parametrize(("name", "shown"), [("clip-image", [0]), ("clip-first-last", [0, -1])])
def test_clip_embedding_is_that_of_the_pipeline(pipeline_folder, name, shown):
    import transformers
    from PIL import Image

    config = ConditionerConfig(name=name, params={"dtype": "float32"})
    conditioner = make_conditioner(config, source=str(pipeline_folder), device="cpu")
    found = conditioner.encode(frames(1), DctVae())
    model = transformers.CLIPVisionModel.from_pretrained(pipeline_folder / "image_encoder").eval()
    processor = transformers.CLIPImageProcessor.from_pretrained(pipeline_folder / "image_processor")
    images = [Image.fromarray(frames(1)[0, :, t].permute(1, 2, 0).numpy()) for t in shown]
    with torch.no_grad():
        states = model(**processor(images=images, return_tensors="pt"), output_hidden_states=True).hidden_states[-2]
    torch.testing.assert_close(found.float(), states.flatten(0, 1)[None], rtol=1e-2, atol=1e-2)
    assert found.shape == (1, *conditioner.shape(DctVae(), BUCKET)) == (1, 5 * len(shown), 16)


def test_models_declare_what_they_want():
    names = [c.name for c in wanted([ConditionerConfig(name="clip-image", source="here")], "wan2.1-i2v")]
    assert names == ["clip-image", "first-frame"]
    with pytest.raises(UserError, match=r"did you mean 'wan2\.1-i2v'"):
        wanted([], "wan2.1-i2")
    with pytest.raises(UserError, match="did you mean 'first-frame'"):
        make_conditioner(ConditionerConfig(name="first_frame"), source="", device="cpu")
    with pytest.raises(UserError, match="source must name"):
        make_conditioner(ConditionerConfig(name="clip-image"), source="", device="cpu")
    with pytest.raises(UserError, match="unknown key 'position'"):
        make_conditioner(ConditionerConfig(name="reference-frames", params={"position": [0]}), source="", device="cpu")
    config = EncodeConfig(conditioning=(ConditionerConfig(name="first-frame"),), for_model="wan2.2-i2v")
    names = [c.name for c in latents_spec(config).columns]
    assert names[-2:] == ["first_frame_latent_crc32", "first_frame_latent"] and "latent" in names


def test_conditioning_is_in_the_fingerprint(pipeline_folder):
    plain, shown = EncodeConfig(), EncodeConfig(for_model="wan2.2-i2v")
    assert identity(plain, DctVae()) != identity(shown, DctVae())
    named = EncodeConfig(conditioning=(ConditionerConfig(name="first-frame"),))
    assert identity(named, DctVae()) == identity(shown, DctVae())
    i2v = EncodeConfig(for_model="wan2.1-i2v", source=str(pipeline_folder))
    assert len(identity(i2v, DctVae())["conditioning"]) == 2


def test_columns_are_stored_beside_the_latent(tmp_path, pipeline_folder):
    from vidpipe.store.dataset import Dataset
    from vidpipe.store.write import write_fragments

    path = tmp_path / "grey.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "bgr0"
        for value in range(10):
            picture = np.full((32, 48, 3), 20 * value, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    row = {
        "clip_id": b"\x01" * 16, "uris": [str(path)], "stream_index": 0, "start_pts": 0, "end_pts": 1000,
        "time_base_num": 1, "time_base_den": 1000, "start_seconds": 0.0, "end_seconds": 1.0, "num_frames": 10,
        "fps": 10.0, "width": 48, "height": 32, "user_crop": None,
    }  # fmt: skip
    config = EncodeConfig(fps="10", for_model="wan2.1-i2v", source=str(pipeline_folder))
    table, _ = encode_clips([row], BUCKET, DctVae(), config, fingerprint="f")
    found = table.to_pylist()[0]
    values = (torch.arange(9) * 20).to(torch.uint8).view(1, 1, 9, 1, 1).expand(1, 3, 9, 32, 48).contiguous()
    condition = FirstFrame().encode(values, DctVae())[0]
    assert found["first_frame_latent"] == condition.view(torch.uint8).numpy().tobytes()
    for column in ("first_frame_latent", "clip_image_embedding", "latent"):
        assert found[f"{column}_crc32"] == zlib.crc32(found[column])
    metadata = table_metadata(DctVae(), BUCKET, config)
    described = {c.column: c for c in conditioning.from_metadata(metadata)}
    assert described["first_frame_latent"].shape == (16, 3, 4, 6) and described["first_frame_latent"].normalised
    assert described["clip_image_embedding"].shape == (5, 16) and len(described["clip_image_embedding"].revision) == 16
    assert len(found["clip_image_embedding"]) == 5 * 16 * 2

    dataset = Dataset(str(tmp_path / "dataset")).create()
    dataset.ensure("latents/dct/9x32x48", latents_spec(config), metadata)
    for name in ("fingerprint", "unit_id"):
        table = table.append_column(name, [["u"]])
    assert len(write_fragments(dataset.root, "latents/dct/9x32x48", table)) == 1
    stored = dataset.table("latents/dct/9x32x48").schema.metadata
    assert json.loads(stored[conditioning.METADATA_KEY]) == json.loads(metadata[conditioning.METADATA_KEY])
    assert conditioning.from_metadata({}) == []


def test_two_conditioners_of_one_column_are_refused():
    config = EncodeConfig(conditioning=(ConditionerConfig(name="first-frame"),))
    spec = latents_spec(config)
    with pytest.raises(SchemaMismatch, match="declared twice"):
        spec.with_columns(FirstFrame().columns())
