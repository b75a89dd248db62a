"""A training run whose loader is slowed says so in its log line."""

import time

from click.testing import CliRunner

from tests.trainer.recipes import TINY
from trainer.cli import main
from trainer.data.read import PackFetcher
from trainer.data.synthetic import SyntheticConfig, write_dataset

RECIPE = f"""
steps = 3
{TINY}
[data]
latents = "synthetic"
text_encoder = "synthetic"
"""


def test_a_slowed_loader_is_named(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "trainer")
    write_dataset(str(tmp_path / "data"), SyntheticConfig(buckets={"1x32x48": 40}, text_dim=64, heldout_every=0))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    fetch = PackFetcher.fetch
    monkeypatch.setattr(PackFetcher, "fetch", lambda *args: time.sleep(1.0) or fetch(*args))
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(main, ["train", str(tmp_path / "recipe.toml"), *folders], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("step:")]
    assert len(lines) == 3
    for line in lines:
        assert "the loader is the bottleneck" in line and "readers in the training process; raise loader" in line
