"""What all tests share: which machines run which tests, and where footage comes from.

Markers decide once, here, what a machine can run. `gpu` tests are skipped on a machine without an NVIDIA GPU; on one
that has a GPU, a skipped `gpu` test is a failure, since a broken set-up would otherwise look like a green run.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@cache
def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, whatever the installed torch can do with it."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def find_media() -> Path | None:
    """Folder of real footage: $VIDPIPE_MEDIA, or shared/media beside the checkout."""
    named = os.environ.get("VIDPIPE_MEDIA")
    if named:
        if not Path(named).is_dir():
            raise pytest.UsageError(f"VIDPIPE_MEDIA={named}: no such folder")
        return Path(named)
    beside = REPOSITORY.parent / "shared" / "media"
    return beside if beside.is_dir() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and long tests unless they were asked for."""
    long_asked = config.getoption("--long") or "long" in config.option.markexpr
    skips = {
        "gpu": None if has_gpu() else "no NVIDIA GPU on this machine",
        "media": None if find_media() else "no ../shared/media beside the checkout, and VIDPIPE_MEDIA is not set",
        "root": None if os.geteuid() == 0 else "needs root",
        "long": None if long_asked else "long: run with --long",
    }
    for item in items:
        for marker, reason in skips.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """On a GPU machine, turn a skipped `gpu` test into a failure."""
    report = yield
    other = any(item.get_closest_marker(m) for m in ("media", "root", "long"))
    if report.skipped and item.get_closest_marker("gpu") and has_gpu() and not other:
        report.outcome = "failed"
        report.longrepr = f"a gpu test was skipped on a machine with a GPU: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def media_dir() -> Path:
    """Folder of real footage; only for tests marked `media`."""
    found = find_media()
    if found is None:
        pytest.skip("no folder of real footage; mark this test `media`")
    return found


class SilentDisplay:
    """Takes the place of a progress display."""

    def update(self, stage: str, **counts: float) -> None:
        """Nothing is shown."""

    def log(self, line: str) -> None:
        """Nothing is shown."""


@pytest.fixture(scope="session")
def demo_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of a minute of synthetic footage, as `vidpipe run pipelines/data/quickstart.toml` makes it.

    Made once, also for several pytest-xdist workers; do not write to it. Its footage lies beside it.
    """
    import fcntl

    import make_footage

    from vidpipe import pipeline
    from vidpipe.recipe import load

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "demo"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "done").exists():
            make_footage.make_footage(shared / "footage", num_plain=12, num_reels=1, seconds=2.5)
            recipe = load(str(REPOSITORY / "pipelines" / "data" / "quickstart.toml"))
            options = pipeline.RunOptions(sources=(str(shared / "footage"),), scheduler="sync")
            pipeline.run(recipe, str(shared / "dataset"), options, SilentDisplay())
            (shared / "done").touch()
    return shared / "dataset"
