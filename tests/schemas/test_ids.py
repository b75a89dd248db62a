"""Ids: golden values, what they depend on, and what they leave alone."""

from __future__ import annotations

import hashlib
import io
from fractions import Fraction

import pytest

from schemas import ids

MIB = 1 << 20


def blake(kind: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16, person=kind.encode().ljust(16, b"\0"))
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class View:
    """A file over a buffer that may change, without a copy."""

    def __init__(self, data):
        self.data, self.place = memoryview(data), 0

    def seek(self, place):
        self.place = place

    def read(self, size):
        return bytes(self.data[self.place : self.place + size])


class CountingFile(io.BytesIO):
    bytes_read = 0

    def read(self, size=-1):
        data = super().read(size)
        self.bytes_read += len(data)
        return data


def test_content_id_of_a_small_file_is_the_hash_of_size_and_bytes():
    data = b"moving pictures"
    assert ids.content_id(io.BytesIO(data), 15) == blake("video", (15).to_bytes(8, "little"), data)
    assert ids.content_id(io.BytesIO(b""), 0) == blake("video", bytes(8), b"")


def test_content_id_reads_three_mib_of_a_large_file():
    size = 40 * MIB
    file = CountingFile(bytes(size))
    ids.content_id(file, size)
    assert file.bytes_read == 3 * MIB


def test_content_id_samples_are_evenly_spaced_and_cover_both_edges():
    size = 64 * MIB
    data = bytearray(size)
    plain = ids.content_id(View(data), size)
    changed = {}
    for place in (0, MIB - 1, size - MIB, size - 1, MIB, size - MIB - 1):
        data[place] = 1
        changed[place] = ids.content_id(View(data), size) != plain
        data[place] = 0
    assert changed == {0: True, MIB - 1: True, size - MIB: True, size - 1: True, MIB: False, size - MIB - 1: False}
    gap = (size - 65536) / 17
    for block in range(16):
        for offset, seen in ((0, True), (65535, True), (65536, False), (-1, False)):
            place = int(gap * (block + 1)) + offset
            data[place] = 1
            assert (ids.content_id(View(data), size) != plain) is seen, (block, offset)
            data[place] = 0


@pytest.mark.parametrize("size", [3 * MIB, 3 * MIB + 1])
def test_content_id_of_files_around_the_limit_sees_their_middle(size):
    data = bytearray(size)
    plain = ids.content_id(io.BytesIO(data), size)
    data[size // 2] = 1
    sees_all = size == 3 * MIB
    assert (ids.content_id(io.BytesIO(data), size) != plain) or not sees_all


def test_content_id_refuses_a_file_that_shrank():
    with pytest.raises(EOFError, match="expected 10 bytes at 0, found 4"):
        ids.content_id(io.BytesIO(b"1234"), 10)


def test_clip_id_is_golden_and_normalises_the_time_base():
    video = bytes(range(16))
    golden = blake("clip", video, b"[0, 0, 17, 1, 8]")
    assert ids.clip_id(video, 0, 0, 17, Fraction(1, 8)) == golden
    assert ids.clip_id(video, 0, 0, 17, Fraction(2, 16)) == golden


def test_clip_id_depends_on_every_part():
    video = bytes(16)
    base = (video, 0, 0, 17, Fraction(1, 8), None)
    others = [
        (b"\1" * 16, 0, 0, 17, Fraction(1, 8), None),
        (video, 1, 0, 17, Fraction(1, 8), None),
        (video, 0, 1, 17, Fraction(1, 8), None),
        (video, 0, 0, 18, Fraction(1, 8), None),
        (video, 0, 0, 17, Fraction(1, 9), None),
        (video, 0, 0, 17, Fraction(1, 8), (0, 0, 64, 96)),
    ]
    assert len({ids.clip_id(*parts) for parts in [base, *others]}) == 7


def test_parts_never_run_together():
    clip = bytes(16)
    assert ids.caption_id(clip, "ab", "c") != ids.caption_id(clip, "a", "bc")
    assert ids.unit_id("s", "f", [b"ab", b"c"]) != ids.unit_id("s", "f", [b"a", b"bc"])
    assert ids.unit_id("s", "f", [b"a", b"b"]) != ids.unit_id("s", "f", [b"b", b"a"])


def test_kinds_never_meet():
    assert ids.text_id("x") != blake("caption", b"x")
    assert ids.text_id("x") == blake("text", b"x")


def test_latent_id_depends_on_rate_geometry_and_fingerprint_but_not_on_key_order():
    clip = bytes(16)
    geometry = {"bucket": "17x64x96", "crop": [0, 0, 96, 64]}
    base = ids.latent_id(clip, Fraction(16), geometry, "f")
    assert base == ids.latent_id(clip, Fraction(32, 2), dict(reversed(geometry.items())), "f")
    different = {
        ids.latent_id(clip, None, geometry, "f"),
        ids.latent_id(clip, Fraction(16000, 1001), geometry, "f"),
        ids.latent_id(clip, Fraction(16), {**geometry, "crop": [0, 1, 96, 63]}, "f"),
        ids.latent_id(clip, Fraction(16), geometry, "g"),
    }
    assert len(different | {base}) == 5


def test_fingerprint_is_hex_and_ignores_the_order_of_upstream():
    one = ids.fingerprint("encode", 1, {"fps": Fraction(16), "names": {"b", "a"}}, ["aa", "bb"])
    assert one == ids.fingerprint("encode", 1, {"names": {"a", "b"}, "fps": Fraction(16, 1)}, ["bb", "aa"])
    assert len(one) == 16
    int(one, 16)
    assert (
        len({one, ids.fingerprint("encode", 2, {}), ids.fingerprint("encode", 1, {}), ids.fingerprint("x", 1, {})}) == 4
    )


def test_canonical_json_has_one_form_and_refuses_what_has_none():
    assert ids.canonical_json({"b": 1, "a": [Fraction(1, 3), {"y", "x"}]}) == b'{"a":["1/3",["x","y"]],"b":1}'
    with pytest.raises(TypeError, match="object has no canonical form"):
        ids.canonical_json(object())


def test_golden_ids_do_not_move():
    """These are on disks: a change here renames every row of every dataset."""
    assert ids.text_id("a red ball").hex() == "bc08c4159fbfb7b80325bd6493a42901"
    assert ids.clip_id(bytes(16), 0, 0, 40, Fraction(1, 24), (1, 2, 3, 4)).hex() == "132d8cf32afe88c7678f629a38503f50"
    assert ids.fingerprint("analyze", 1, {"a": 1.5}) == "7dbec746101342cf"
