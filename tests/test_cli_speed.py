"""Both commands answer `--help` in under half a second, since heavy imports happen where they are used."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

LIMIT_SECONDS = 0.5
HEAVY = {
    "torch", "numpy", "pyarrow", "lance", "duckdb", "av", "cv2", "torchcodec", "scenedetect", "dask", "distributed",
    "diffusers", "transformers", "openai", "matplotlib", "tensorboard",
}  # fmt: skip
CLIS = ("vidpipe.cli", "trainer.cli")


def run_help(module: str) -> tuple[float, str]:
    """Best of five: a machine that is busy elsewhere is not what is tested."""
    command = [sys.executable, "-c", f"from {module} import main; main(['--help'])"]
    best, output = float("inf"), ""
    for _ in range(5):
        start = time.perf_counter()
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        best = min(best, time.perf_counter() - start)
    return best, output


@pytest.mark.parametrize("module", CLIS)
def test_help_is_fast(module):
    seconds, output = run_help(module)
    assert "Usage:" in output
    assert seconds < LIMIT_SECONDS, f"{module} --help took {seconds:.2f} s; see `python -X importtime`"


@pytest.mark.parametrize("module", CLIS)
def test_help_loads_nothing_heavy(module):
    code = (
        f"import json, sys\nfrom {module} import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = set(json.loads(output.strip().splitlines()[-1]))
    assert loaded & HEAVY == set()
