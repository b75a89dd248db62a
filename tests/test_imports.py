"""Hold the import directions: `vidpipe -> schemas <- trainer`, and one module for each heavy door."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("schemas", "vidpipe", "trainer")
DASK = {"dask", "distributed", "dask_jobqueue", "dask_kubernetes", "dask_cuda"}
WRITERS = ("vidpipe/preview.py", "trainer/sample.py")
"""They encode an MP4, and decode nothing."""
DECODER_HOMES = {
    "torchcodec": ("vidpipe/media/torchcodec_", "vidpipe/media/doctor.py"),
    "nvidia.dali": ("vidpipe/media/dali", "vidpipe/media/doctor.py"),
    "av": ("vidpipe/media/", *WRITERS),
}


def modules_of(package: str) -> list[Path]:
    return sorted((REPOSITORY / package).rglob("*.py"))


def imported(source: str, package: str) -> Iterator[str]:
    """Yield the absolute module name of every import statement, nested ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports_of(path: Path) -> frozenset[str]:
    return frozenset(imported(path.read_text(), ".".join(path.relative_to(REPOSITORY).parent.parts)))


def roots(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_walker_sees_nested_relative_and_aliased_imports():
    source = "import a.b as c\ndef f():\n    from . import d\nclass K:\n    from e import g\nfrom ..up import j\n"
    assert set(imported(source, "pkg.sub")) == {"a.b", "pkg.sub", "pkg.sub.d", "e", "e.g", "pkg.up", "pkg.up.j"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_there(package):
    assert modules_of(package), f"{package}/ has no modules: the tests below would hold nothing"


def test_vidpipe_and_trainer_never_import_each_other():
    assert [relative(p) for p in modules_of("vidpipe") if "trainer" in roots(imports_of(p))] == []
    assert [relative(p) for p in modules_of("trainer") if "vidpipe" in roots(imports_of(p))] == []


def test_trainer_names_no_vidpipe_module_in_a_string():
    """`importlib.import_module("vidpipe...")` would go round the rule; names come from schemas.registry alone."""
    offenders = []
    for path in modules_of("trainer"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
                "import_module",
                "__import__",
            ):
                texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                offenders += [relative(path) for t in texts if str(t).startswith("vidpipe")]
    assert offenders == []


def test_schemas_needs_only_pyarrow():
    allowed = set(sys.stdlib_module_names) | {"schemas", "pyarrow"}
    assert {relative(p): sorted(bad) for p in modules_of("schemas") if (bad := roots(imports_of(p)) - allowed)} == {}


def test_only_graph_imports_dask():
    users = {relative(p) for package in PACKAGES for p in modules_of(package) if roots(imports_of(p)) & DASK}
    assert users <= {"vidpipe/graph.py"}


@pytest.mark.parametrize("library", DECODER_HOMES)
def test_codecs_are_opened_in_their_own_modules(library):
    homes = DECODER_HOMES[library]
    users = {
        relative(p)
        for package in PACKAGES
        for p in modules_of(package)
        if any(name == library or name.startswith(library + ".") for name in imports_of(p))
    }
    assert sorted(u for u in users if not u.startswith(homes)) == []


def test_nothing_shipped_imports_tests_or_scripts():
    modules = [p for package in PACKAGES for p in modules_of(package)]
    assert [relative(p) for p in modules if roots(imports_of(p)) & {"tests", "scripts"}] == []
