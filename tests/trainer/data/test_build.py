"""The index: joins, filters, splits, captions, fingerprints, weights, pins, and its errors."""

import dataclasses
import json

import lance
import numpy as np
import pyarrow as pa
import pytest

from schemas import ids
from schemas.errors import LatentSpaceMismatch, UnknownColumn, UserError
from schemas.layout import table_uri
from schemas.tables import CAPTIONS, CLIPS, SCORES
from trainer.data import synthetic
from trainer.data.index import NO_TEXT, DatasetConfig
from trainer.data.synthetic import SPACE, SyntheticConfig, write_dataset


def latent_ids(index):
    return {bytes(i) for i in index.latent_ids}


def rows_of(root, table, columns):
    return lance.dataset(table_uri(str(root), table)).to_table(columns=columns, filter="unit_id != ''").to_pylist()


def append(root, name, spec, rows, fingerprint=synthetic.FINGERPRINT):
    table = lance.dataset(table_uri(str(root), name))
    stamped = [{**row, "fingerprint": fingerprint, "unit_id": "test"} for row in rows]
    lance.write_dataset(synthetic._arrow(stamped, table.schema, spec), table.uri, mode="append")


def test_streams_cover_the_training_split(make_index):
    index = make_index()
    assert [(s.bucket, s.num_rows) for s in index.streams] == [("1x64x64", 56), ("5x64x96", 28), ("17x64x64", 14)]
    assert [s.num_tokens for s in index.streams] == [16, 48, 80]
    assert [s.latent_bytes for s in index.streams] == [2 * 16 * t * 4 for t in (16, 48, 80)]
    assert len(index) == 98 and index.space == SPACE


def test_heldout_and_train_share_no_latent(make_index, dataset):
    train, held, both = make_index(), make_index(split="heldout"), make_index(split="all")
    assert len(held) == 14 and not latent_ids(train) & latent_ids(held)
    assert latent_ids(train) | latent_ids(held) == latent_ids(both)
    wanted = {r["clip_id"] for r in rows_of(dataset, "tables/split", ["clip_id", "split"]) if r["split"] == "heldout"}
    assert {
        ids.latent_id(clip, None, {"bucket": b}, synthetic.FINGERPRINT)
        for clip in wanted
        for b in ("1x64x64", "5x64x96", "17x64x64")
    } >= latent_ids(held)


def test_rows_point_at_their_payload(make_index, dataset):
    index = make_index()
    for stream in index.streams:
        table = lance.dataset(table_uri(dataset, stream.table), version=stream.version)
        row = stream.start + 3
        ((_, data),) = table.read_blobs("latent", ids=[int(index.row_ids[row])])
        path = table_uri(dataset, stream.table) + "/" + stream.files[index.files[row]]
        with open(path, "rb") as file:
            file.seek(int(index.positions[row]))
            assert file.read(stream.latent_bytes) == data


def test_rows_of_a_stream_lie_in_the_order_of_the_table(make_index):
    index = make_index()
    for stream in index.streams:
        part = slice(stream.start, stream.stop)
        places = index.files[part].astype(np.int64) << 40 | index.positions[part].astype(np.int64)
        assert (np.diff(places) > 0).all()


def test_captions_belong_to_the_clip_and_shares_follow_the_weights(make_index, dataset):
    index = make_index(captions={"sidecar": 3.0, "openai:toy": 1.0})
    by_clip = {}
    for row in rows_of(dataset, "captions", ["clip_id", "text", "source"]):
        by_clip.setdefault(row["clip_id"], {})[row["source"]] = row["text"]
    latents = {}
    for stream in index.streams:
        for row in rows_of(dataset, stream.table, ["latent_id", "clip_id"]):
            latents[row["latent_id"]] = row["clip_id"]
    text = lance.dataset(table_uri(dataset, "text/synthetic"))
    names = dict(zip(*(text.to_table(columns=["text"], with_row_id=True).to_pydict()[k] for k in ("_rowid", "text"))))
    for row in range(len(index)):
        start, stop = (int(i) for i in index.caption_starts[row : row + 2])
        found = [names[int(index.text_row_ids[t])] for t in index.caption_texts[start:stop]]
        wanted = by_clip[latents[bytes(index.latent_ids[row])]]
        assert found == [wanted["openai:toy"], wanted["sidecar"]]
        assert index.caption_shares[start:stop].tolist() == [0.25, 1.0]


def test_one_source_only(make_index):
    index = make_index(captions={"sidecar": 1.0})
    assert (np.diff(index.caption_starts.astype(int)) == 1).all() and (index.caption_shares == 1).all()


def test_filter_reads_clips_and_latents_and_null_is_false(make_index):
    assert {s.bucket for s in make_index(filter="num_frames > 4").streams} == {"5x64x96", "17x64x64"}
    latents = "num_frames > 1 and bucket = '5x64x96' and scale is null"
    assert {s.bucket for s in make_index(filter=latents).streams} == {"5x64x96"}
    with pytest.raises(UserError, match="no row of split 'train' is left"):
        make_index(filter="shot_index > 0")  # null everywhere


def test_filter_reads_later_scores(make_index, tmp_path):
    write_dataset(str(tmp_path / "d"), SyntheticConfig(buckets={"1x64x64": 16}, heldout_every=0))
    clips = rows_of(tmp_path / "d", "clips", ["clip_id"])
    from schemas.columns import Column

    spec = SCORES.with_columns([Column(name="blur_score", type=pa.float32(), meaning="sharpness")])
    scored = [{**row, "blur_score": i / 16} for i, row in enumerate(clips)]
    synthetic._write(str(tmp_path / "d"), "scores/blur", spec, scored)
    assert len(make_index(root=tmp_path / "d", filter="blur_score >= 0.5")) == 8
    with pytest.raises(UnknownColumn, match="did you mean 'blur_score'"):
        make_index(root=tmp_path / "d", filter="blur_scor > 0")


def test_newest_fingerprint_is_read_and_the_others_are_counted(make_index, tmp_path):
    root = tmp_path / "d"
    write_dataset(str(root), SyntheticConfig(buckets={"1x64x64": 16}, heldout_every=0))
    clips = rows_of(root, "clips", ["clip_id", "video_id", "num_frames"])[:10]
    append(root, "clips", CLIPS, clips, fingerprint="f" * 16)
    index = make_index(root=root, filter="num_frames > 0")
    assert len(index) == 10
    assert any("not read: 0000000000000000 (16 rows)" in note for note in index.notes)
    old = DatasetConfig(path=str(root), fingerprints={"clips": synthetic.FINGERPRINT})
    assert len(make_index(datasets=(old,))) == 16
    with pytest.raises(UserError, match="no rows of fingerprint"):
        make_index(datasets=(dataclasses.replace(old, fingerprints={"clips": "e" * 16}),))


def test_captionless_rows_are_dropped_or_empty(make_index, tmp_path):
    root = tmp_path / "d"
    write_dataset(str(root), SyntheticConfig(buckets={"1x64x64": 16}, heldout_every=0, captions={"sidecar": 1}))
    lance.dataset(table_uri(str(root), "captions")).delete("text LIKE 'still%'")
    assert len(make_index(root=root)) == 12
    index = make_index(root=root, captionless="empty")
    assert len(index) == 16 and index.texts[0].empty != NO_TEXT
    assert (index.caption_texts == index.texts[0].empty).sum() == 4


def test_without_text(make_index):
    index = make_index(text_encoder="")
    assert len(index) == 98 and not index.texts and len(index.caption_texts) == 0
    assert index.text_dim == 0


def test_several_datasets_with_weights(make_index, dataset, tmp_path):
    write_dataset(str(tmp_path / "d"), SyntheticConfig(buckets={"1x64x64": 8}, seed=1, heldout_every=0))
    index = make_index(
        datasets=(
            DatasetConfig(path=dataset, buckets=("5x64x96",)),
            DatasetConfig(path=str(tmp_path / "d"), weight=2.5),
        )
    )
    assert [(s.dataset, s.bucket, s.weight) for s in index.streams] == [(0, "5x64x96", 1.0), (1, "1x64x64", 2.5)]
    assert len(index.texts) == 2 and index.texts[1].start == index.texts[0].stop
    last = index.caption_texts[int(index.caption_starts[index.streams[1].start]) :]
    assert last.min() >= index.texts[1].start


def test_found_again_by_its_hash_and_pinned_when_tables_grow(make_index, tmp_path):
    root = tmp_path / "d"
    write_dataset(str(root), SyntheticConfig(buckets={"1x64x64": 16}, heldout_every=0))
    first = make_index(root=root)
    assert make_index(root=root).folder == first.folder
    append(
        root,
        "captions",
        CAPTIONS,
        rows_of(root, "captions", ["caption_id", "clip_id", "text_id", "source", "text"])[:1],
    )
    grown = make_index(root=root)
    assert grown.folder != first.folder
    pinned = make_index(root=root, versions=first.versions)
    assert pinned.folder == first.folder and pinned.content_hash == first.content_hash


def test_versions_that_are_read_are_tagged(make_index, dataset):
    index = make_index()
    tags = lance.dataset(table_uri(dataset, "latents/synthetic/1x64x64")).tags.list()
    assert tags[f"trainer-{index.folder.name}"]["version"] == index.streams[0].version


def test_other_space_is_refused_with_advice(make_index):
    with pytest.raises(LatentSpaceMismatch, match=r"revision .* encode again"):
        make_index(space=dataclasses.replace(SPACE, revision="other"))


def test_mixed_spaces_are_refused(make_index, dataset, tmp_path):
    other = SyntheticConfig(buckets={"1x64x64": 8}, space=dataclasses.replace(SPACE, revision="2"), heldout_every=0)
    write_dataset(str(tmp_path / "d"), other)
    with pytest.raises(LatentSpaceMismatch, match="revision"):
        make_index(datasets=(DatasetConfig(path=dataset), DatasetConfig(path=str(tmp_path / "d"))))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"root": "/nowhere"}, "no such folder"),
        ({"latents": "synthetik"}, "did you mean 'synthetic'"),
        ({"buckets": ("1x64x65",)}, "did you mean '1x64x64'"),
        ({"text_encoder": "t6"}, "no text embeddings of 't6'"),
        ({"filter": "num_frames >"}, "expression"),
        ({"filter": "num_frame > 1"}, "did you mean 'num_frames'"),
    ],
)
def test_wrong_input_is_one_clear_line(make_index, values, message):
    with pytest.raises(UserError, match=message) as caught:
        make_index(**values)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tables_is_no_dataset(make_index, tmp_path):
    with pytest.raises(UserError, match=r"no clips.lance in it"):
        make_index(root=tmp_path)


def test_newer_schema_version_is_refused(make_index, tmp_path):
    root = tmp_path / "d"
    write_dataset(str(root), SyntheticConfig(buckets={"1x64x64": 8}, heldout_every=0))
    lance.dataset(table_uri(str(root), "clips")).update_schema_metadata({"vidpipe.schema_version": "99"})
    with pytest.raises(UserError, match="schema version 99"):
        make_index(root=root)


def test_a_killed_build_leaves_no_index(make_index, tmp_path):
    index = make_index()
    assert [p.name for p in index.folder.parent.iterdir()] == [index.folder.name]
    assert json.loads((index.folder / "index.json").read_text())["content_hash"] == index.content_hash
