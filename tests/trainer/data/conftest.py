"""A small dataset on disk, its index and a planner over it."""

import pytest

from trainer.data.build import build_index
from trainer.data.index import DataConfig, DatasetConfig
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner
from trainer.data.synthetic import SyntheticConfig, write_dataset

FLOPS = FlopModel(quadratic=1.0, linear=1000.0)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """64 images, 32 clips of 5 frames and 16 of 17, every eighth held out; two captions a clip."""
    root = tmp_path_factory.mktemp("data") / "dataset"
    write_dataset(str(root), SyntheticConfig(rows_per_fragment=20))
    return str(root)


@pytest.fixture
def make_index(dataset, tmp_path):
    def make(root=dataset, **values):
        defaults = {"latents": "synthetic", "text_encoder": "synthetic"}
        datasets = values.pop("datasets", None) or (DatasetConfig(path=str(root)),)
        options = {name: values.pop(name) for name in ("space", "versions", "tag") if name in values}
        return build_index(DataConfig(datasets=datasets, **{**defaults, **values}), tmp_path / "cache", **options)

    return make


@pytest.fixture
def make_planner():
    def make(index, **values):
        return Planner(index, PlanConfig(**{"token_budget": 512, "packs_per_step": 4, "seed": 1, **values}), FLOPS)

    return make
