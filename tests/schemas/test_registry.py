"""The registry resolves names, names the nearest one, and takes third parties' entry points."""

from __future__ import annotations

import importlib.metadata

import pytest

from schemas import registry
from schemas.errors import UserError


def test_load_imports_the_named_class():
    import collections

    assert registry.load({"x": "collections:OrderedDict"}, "vidpipe.vaes", "x") is collections.OrderedDict


def test_unknown_name_is_one_line_with_the_nearest():
    with pytest.raises(UserError, match=r"^unknown vaes 'dtc'; did you mean 'dct'\?$"):
        registry.load_vae("dtc")
    with pytest.raises(UserError, match=r"unknown text_encoders 'umt'; did you mean 'umt5'\?"):
        registry.load_text_encoder("umt")


def test_entry_points_of_third_parties(monkeypatch):
    point = importlib.metadata.EntryPoint("mine", "collections:Counter", "vidpipe.vaes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "vidpipe.vaes" else [])
    from collections import Counter

    assert registry.load_vae("mine") is Counter
    with pytest.raises(UserError, match="did you mean 'mine'"):
        registry.load_vae("min")


@pytest.mark.parametrize("target", [*registry.VAES.values(), *registry.TEXT_ENCODERS.values()])
def test_every_entry_resolves(target):
    assert registry.load({"it": target}, "vidpipe.vaes", "it").__name__ == target.rpartition(":")[2]
