"""Notebooks run from top to bottom on the demo's dataset, define nothing, and are stored without outputs."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS][:1] == ["01_data_quality.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_defines_nothing(path):
    """A function in a notebook is a function that no test covers: it belongs into a package."""
    for source in code_cells(path):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)), source


def run(path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Execute; return all text and HTML that came out."""
    from nbclient import NotebookClient

    monkeypatch.setenv("VIDPIPE_DATASET", str(dataset))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            found += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(found)


def test_data_quality_shows_what_was_rejected_and_why(demo_dataset, monkeypatch):
    output = run(FOLDER / "01_data_quality.ipynb", demo_dataset, monkeypatch)
    assert "truncated_header" in output and "broken.mp4" in output
    assert "motion_score > 0.01" in output and "luminance_mean > 0.04" in output
    assert output.count("<img src=") > 20
    assert "still.mp4" in output and "dark.mp4" in output and "twin.webm" in output
    assert "latents/dct/17x64x96: " in output and "(17, 64, 96, 3)" in output
