"""Small files: exclusive creation, whole or absent; one set of credentials for Lance and fsspec."""

from __future__ import annotations

import threading

import pytest

from schemas.errors import UserError
from vidpipe.store import files
from vidpipe.store.files import Files


@pytest.fixture(params=["local", "s3"])
def store(request, tmp_path):
    if request.param == "local":
        return Files(str(tmp_path / "data"))
    return request.getfixturevalue("s3_root") and Files(request.getfixturevalue("s3_root"))


def test_write_read_list_remove(store):
    assert store.read("a/b.json") is None
    assert not store.exists("a/b.json")
    assert store.list("a") == []
    store.write("a/b.json", b"one")
    store.write("a/b.json", b"two")
    store.write("a/c/d.json", b"three")
    assert store.read("a/b.json") == b"two"
    assert store.exists("a/b.json")
    assert store.list("a") == ["b.json", "c"]
    store.remove("a/b.json")
    store.remove("a/b.json")
    assert store.list("a") == ["c"]


def test_only_one_creates(store):
    store.read("x")  # connect once, outside of the race
    won: list[int] = []

    def create(number: int) -> None:
        if store.create("folder/x", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("folder/x") == str(won[0]).encode()


def test_no_half_file_stays_behind(tmp_path):
    store = Files(str(tmp_path))
    store.create("x", b"1")
    assert not store.create("x", b"2")
    store.write("x", b"3")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_store_that_ignores_conditions_is_refused(s3_root, monkeypatch):
    monkeypatch.setattr(files, "_PROBED", set())
    store = Files(s3_root)
    monkeypatch.setattr(store, "_put_new", lambda name, data: store.write(name, data) or True)
    with pytest.raises(UserError, match="ignores `If-None-Match"):
        store.create("x", b"1")
    assert store.list() == []
