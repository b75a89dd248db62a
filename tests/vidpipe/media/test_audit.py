"""The audit finds agreement where there is, and disagreement where a back end is made to disagree."""

from __future__ import annotations

import math

import pytest

from vidpipe.media import audit as module
from vidpipe.media.audit import audit, audit_file, print_audit


def test_back_ends_agree_on_whole_files(recipe_file):
    rows = audit_file(str(recipe_file("h264_open_gop")))
    assert {row.decoder for row in rows} >= {"pyav"}
    for row in rows:
        assert (row.codec, row.exact, row.frames, row.problem) == ("h264", 1.0, 24, "")
        assert row.worst_psnr_db == math.inf and row.frames_per_second > 0


def test_disagreement_is_measured(recipe_file, monkeypatch):
    from vidpipe.media.pyav import PyAvReader

    class Wrong(PyAvReader):
        decoder_name = "wrong"

        def _converted(self, *args):
            out, damaged = super()._converted(*args)
            return out // 2, damaged

    monkeypatch.setattr(module, "back_ends", lambda: [("pyav", "cpu"), ("wrong", "cpu")])
    monkeypatch.setattr("vidpipe.registry.load_decoder", lambda name: Wrong if name == "wrong" else PyAvReader)
    good, wrong = audit_file(str(recipe_file("mjpeg")))
    assert (good.exact, wrong.exact, wrong.used) == (1.0, 0.0, "wrong")
    assert wrong.worst_psnr_db is not None and wrong.worst_psnr_db < 15


def test_a_folder_with_unusable_files_is_audited_whole(tmp_path, recipe_file, capsys):
    (tmp_path / "a.avi").write_bytes(recipe_file("mpeg4_avi").read_bytes())
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "notes.md").write_text("no media")
    rows = list(audit(str(tmp_path)))
    assert {row["uri"].rpartition("/")[2] for row in rows} == {"a.avi", "empty.mp4"}
    print_audit(rows)
    told = capsys.readouterr().out
    assert "empty_file" in told and "mpeg4" in told and "100.0%" in told


@pytest.mark.media
def test_real_files_agree(media_dir):
    for name in ("mdn_rabbit320.webm", "hard/tc_av1_video.mkv", "hard/nasa_13013_rotated.mp4"):
        assert all(row.exact == 1.0 for row in audit_file(str(media_dir / name)))
