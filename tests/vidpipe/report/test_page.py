"""The page holds the toy dataset's counts, escapes what users wrote, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from schemas.errors import UserError
from vidpipe.media.errors import MediaError
from vidpipe.report import page, pictures, write_report
from vidpipe.store.dataset import Dataset

VOID = {"meta", "img", "br", "rect", "line"}


class Checker(HTMLParser):
    """Collects text, and complains of tags that do not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.sources = [], [], []

    def handle_starttag(self, tag, attributes):
        self.sources += [v for k, v in attributes if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.sources += [v for k, v in attributes if k in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def shown(monkeypatch):
    """Clips that were shown, by id; their pictures are not decoded."""
    seen = []

    def strip(clip):
        seen.append(clip["clip_id"])
        if clip["clip_id"] == (104).to_bytes(16, "big"):
            raise MediaError("io_error", "a.mp4: gone")
        return "data:image/jpeg;base64,AAAA"

    monkeypatch.setattr(pictures, "strip", strip)
    return seen


@pytest.fixture
def text(toy_dataset, shown):
    return page.render(toy_dataset)


def plain(text: str) -> str:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return " ".join(" ".join(checker.text).split())


def test_tags_nest_and_nothing_is_loaded_from_elsewhere(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(s.startswith("data:") for s in checker.sources)
    assert "<script" not in text and "@import" not in text and "url(" not in text


def test_counts_are_there(text):
    words = plain(text)
    assert "4 files 2 usable videos 1 min 0 s of footage 6 clips, 30 s" in words
    assert "encode 3 2 1 0" in words.replace("1 under other parameters ", "")
    assert "1 under other parameters" in words
    assert "motion_score > 0.015 is false: 2 of 6 (33.3%)" in words
    assert "toy 17x64x96 3 120 360 11.5 kB" in words
    assert "near-duplicate groups 5" in words and "clips in heldout 1" in words
    assert "sidecar 4 4 40 8" in words


def test_what_users_wrote_is_escaped(text):
    assert "b<b>.mp4" not in text and "b&lt;b&gt;.mp4" in text
    assert "words <1>" not in text and "words &lt;1&gt;" in text
    assert "the &lt;decoder&gt; died" in text


def test_rejected_and_kept_clips_are_shown_and_failed_ones_are_not(text, shown):
    numbers = sorted(int.from_bytes(clip, "big") - 100 for clip in shown)
    assert numbers == [0, 1, 2, 3, 4]
    assert text.count("<img ") == 4
    assert "not shown: a.mp4: gone" in text
    assert "motion_score=0.01" in text


def test_columns_come_with_unit_meaning_and_threshold(text):
    figure = re.search(r"<figure><svg(?:(?!</figure>).)*motion_score.*?</figure>", text, re.S)[0]
    assert "(diagonals/s): how fast things move" in figure
    assert figure.count('class="mark"') == 1


def test_meanings_are_cut_at_their_first_clause():
    assert page.shortened("share of pairs; null without") == "share of pairs"
    assert page.shortened("sharpness: share of differences") == "sharpness"
    assert page.shortened("word " * 40).endswith(" …") and len(page.shortened("word " * 40)) <= 110


def test_report_goes_into_the_dataset_or_where_it_is_told(toy_dataset, shown, tmp_path):
    path = write_report(toy_dataset.root)
    assert path == f"{toy_dataset.root}/report.html"
    assert (tmp_path / "r.html").exists() is False
    assert write_report(toy_dataset.root, str(tmp_path / "r.html")) == str(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(toy_dataset.root, str(tmp_path / "no" / "r.html"))


def test_an_empty_dataset_has_a_page_too(tmp_path):
    dataset = Dataset(str(tmp_path / "d")).create()
    assert "0 files" in plain(page.render(dataset))


def test_jpeg_strip_is_as_wide_as_its_frames():
    import base64
    import io

    from PIL import Image

    url = pictures.jpeg_url(np.full((3, 84, 126, 3), 200, np.uint8))
    image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))))
    assert image.size == (3 * 126 + 2 * 2, 84)
    assert abs(image.getpixel((60, 40))[0] - 200) < 5


@pytest.mark.parametrize(
    ("size", "expected"), [((1080, 1920), (84, 150)), ((192, 128), (84, 56)), ((10, 4000), (84, 336))]
)
def test_frame_size_is_even_and_bounded(size, expected):
    assert pictures.frame_size(*size) == expected
