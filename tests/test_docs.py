"""What the documents name exists: commands, their options, make targets, files."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "scripts" / "demo.sh"]
CODE = re.compile(r"`([^`\n]+)`|^(?: {4}|step )(.+(?:\\\n.+)*)$", re.MULTILINE)


def code_of(page: Path) -> list[str]:
    """Code spans and indented blocks, continued lines joined."""
    return [(span or block).replace("\\\n", " ") for span, block in CODE.findall(page.read_text())]


def commands_of(program: str) -> dict[str, click.Command]:
    import importlib

    return importlib.import_module(f"{program}.cli").main.commands


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page):
    checked = 0
    for code in code_of(page):
        for program, rest in re.findall(r"\b(vidpipe|trainer)(?:\.cli)? ([a-z][a-z-]+\b.*)", code):
            words = re.sub(r'"[^"]*"', "QUOTED", rest).split()
            known = commands_of(program)
            assert words[0] in known, f"{page.name}: `{program} {words[0]}`"
            options = {name for parameter in known[words[0]].params for name in parameter.opts}
            assert {w for w in words if w.startswith("--")} <= options, f"{page.name}: {code}"
            checked += 1
    assert checked or page.name not in ("README.md", "scale-out.md", "demo.sh")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for code in code_of(page):
        for target in re.findall(r"^make ([a-z-]+)", code):
            assert target in targets, f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_named_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), f"{page.name}: {link}"
    for path in re.findall(r"\b((?:pipelines|notebooks|docs|tests|vidpipe|trainer|schemas)/[\w./-]+\.\w+)", text):
        assert (REPOSITORY / path).exists(), f"{page.name}: {path}"


def test_extras_that_the_readme_names_exist():
    import tomllib

    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"`(?:pip install vidpipe)?\[(\w+)\]`", (REPOSITORY / "README.md").read_text())
    assert set(named) == set(extras)
