"""Contact sheets: which clips, in which order, and what is refused."""

from __future__ import annotations

import pytest

from schemas.errors import UnknownColumn, UserError
from vidpipe.media.errors import MediaError
from vidpipe.report import Snapshot, contact_sheet, pictures


@pytest.fixture
def snapshot(toy_dataset, monkeypatch):
    def strip(clip):
        if clip["start_seconds"] == 30.0:
            raise MediaError("io_error", "b<b>.mp4: gone")
        return "data:image/jpeg;base64,AAAA"

    monkeypatch.setattr(pictures, "strip", strip)
    with Snapshot(toy_dataset.root) as opened:
        yield opened


def test_clips_come_in_the_order_asked_for_with_their_values(snapshot):
    sheet = contact_sheet(
        snapshot, "motion_score > 0.015", columns=["motion_score"], order_by="motion_score DESC", limit=3
    )
    assert len(sheet) == 3 and repr(sheet) == "Sheet of 3 clips"
    shown = [text.split("motion_score ")[1].split("<")[0] for text in sheet.figures]
    assert shown == ["0.05", "0.04", "0.03"]
    page = sheet._repr_html_()
    assert page.count("<img ") == 2
    assert "b&lt;b&gt;.mp4: gone" in page


def test_the_same_clips_come_each_time(snapshot):
    assert contact_sheet(snapshot, limit=2).figures == contact_sheet(snapshot, limit=2).figures


def test_nothing_found(snapshot):
    assert contact_sheet(snapshot, "motion_score > 9")._repr_html_() == "no clips"


def test_refusals(snapshot):
    with pytest.raises(UnknownColumn, match="did you mean 'motion_score'"):
        contact_sheet(snapshot, "motion_scor > 1")
    with pytest.raises(UserError):
        contact_sheet(snapshot, "motion_score >")
    with pytest.raises(UnknownColumn):
        contact_sheet(snapshot, columns=["nothing"])


def test_no_dataset(tmp_path):
    with pytest.raises(UserError, match="no dataset"):
        Snapshot(str(tmp_path))
