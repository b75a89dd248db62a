"""The loader: what was planned comes, from any number of processes, on any number of ranks, bad rows or not."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib

import lance
import numpy as np
import pytest
import torch

from schemas.errors import UserError
from schemas.layout import table_uri
from trainer.data import blobs
from trainer.data.collate import unpatchify
from trainer.data.loader import LoaderConfig, PackLoader
from trainer.data.read import RawPack
from trainer.data.schedule import Phase, Schedule
from trainer.data.synthetic import SyntheticConfig, write_dataset


def identity(packs):
    """What a step is, sample for sample, whatever the packs' order."""
    return sorted(
        (name, int(visit)) for pack in packs if pack.weight for name, visit in zip(pack.latent_ids, pack.visits)
    )


def take(loader, count):
    return [next(loader) for _ in range(count)]


@pytest.fixture
def index(make_index):
    return make_index()


@pytest.fixture
def planner(index, make_planner):
    return make_planner(index)


def test_tokens_are_the_stored_latents(index, planner, dataset):
    pack = next(PackLoader(index, planner))[0]
    assert pack.tokens_LD.shape == (512, 64) and pack.tokens_LD.dtype == torch.bfloat16
    assert pack.num_tokens + pack.num_padding_tokens == 512
    assert not pack.tokens_LD[pack.num_tokens :].any()
    for i, row in enumerate(pack.rows.tolist()):
        stream = index.streams[int(index.stream_of(np.array([row]))[0])]
        table = lance.dataset(table_uri(dataset, stream.table))
        ((_, data),) = table.read_blobs("latent", ids=[int(index.row_ids[row])])
        stored = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(stream.shape_CTHW)
        tokens = pack.tokens_LD[pack.cu_seqlens[i] : pack.cu_seqlens[i + 1]]
        assert torch.equal(unpatchify(tokens, pack.grid_thw[i], 16, (1, 2, 2)), stored)
        assert pack.latent_ids[i] == bytes(index.latent_ids[row])


def test_texts_are_captions_of_the_clip(index, planner, dataset):
    table = lance.dataset(table_uri(dataset, "text/synthetic"))
    rows = table.to_table(columns=["text_id"], with_row_id=True)["_rowid"].to_pylist()
    stored = {bytes(data) for _, data in table.read_blobs("embedding", ids=rows)}
    pack = next(PackLoader(index, planner))[0]
    for i in range(pack.num_samples):
        text = pack.text_LD[pack.text_cu_seqlens[i] : pack.text_cu_seqlens[i + 1]]
        assert text.shape[1] == 32 and text.contiguous().view(torch.int16).numpy().tobytes() in stored


def test_long_texts_are_cut(make_index, make_planner):
    index = make_index(max_text_tokens=3)
    pack = next(PackLoader(index, make_planner(index)))[0]
    assert (pack.text_cu_seqlens.diff() == 3).all()
    whole = next(PackLoader(make_index(), make_planner(make_index())))[0]
    assert torch.equal(pack.text_LD[:3], whole.text_LD[:3])


def test_captions_are_drawn_by_weight_and_anew_each_visit(make_index, make_planner):
    index = make_index(captions={"sidecar": 3.0, "openai:toy": 1.0})
    loader = PackLoader(index, make_planner(index))
    first, total, seen = 0, 0, {}
    for packs in take(loader, 60):
        for pack in packs:
            lengths = [
                t.tobytes() for t in np.split(pack.text_LD.view(torch.int16).numpy(), pack.text_cu_seqlens[1:-1])
            ]
            for row, text in zip(pack.rows.tolist(), lengths):
                seen.setdefault(row, set()).add(text)
                total += 1
    assert sum(len(v) == 2 for v in seen.values()) > 0.9 * len(seen)
    from trainer.data.read import choose_texts

    rows = np.tile(np.arange(len(index)), 40)
    texts = choose_texts(index, rows, np.repeat(np.arange(40), len(index)), seed=1)
    first = texts == index.caption_texts[index.caption_starts[rows].astype(int)]
    assert first.mean() == pytest.approx(0.25, abs=0.02)
    assert total > 1000


@pytest.mark.parametrize("num_readers", [1, 3])
def test_processes_give_what_one_process_gives(index, planner, num_readers):
    alone = PackLoader(index, planner, rank=1, world_size=3)
    with PackLoader(index, planner, rank=1, world_size=3, num_readers=num_readers) as loader:
        for expected, found in zip(take(alone, 6), take(loader, 6)):
            assert [p.number for p in expected] == [p.number for p in found]
            for a, b in zip(expected, found):
                assert torch.equal(a.tokens_LD.view(torch.int16), b.tokens_LD.view(torch.int16))
                assert torch.equal(a.text_LD.view(torch.int16), b.text_LD.view(torch.int16))
                assert torch.equal(a.cu_seqlens, b.cu_seqlens) and torch.equal(a.text_cu_seqlens, b.text_cu_seqlens)
                assert a.latent_ids == b.latent_ids and torch.equal(a.visits, b.visits)


def test_packs_may_be_kept(index, planner):
    with PackLoader(index, planner, num_readers=1) as loader:
        kept = next(loader)
        copies = [pack.tokens_LD.clone() for pack in kept]
        take(loader, 8)
        assert all(torch.equal(pack.tokens_LD, copy) for pack, copy in zip(kept, copies))


def test_stop_and_go_on_at_other_world_sizes_and_readers(index, planner, make_planner):
    expected = [identity(step) for step in take(PackLoader(index, planner), 12)]
    found, state = [], None
    for world_size, readers, steps in ((1, 2, 3), (2, 1, 4), (4, 0, 2), (3, 1, 3)):
        loaders = [
            PackLoader(index, make_planner(index), rank=r, world_size=world_size, num_readers=readers)
            for r in range(world_size)
        ]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        for _ in range(steps):
            step = [next(loader) for loader in loaders]
            assert len({len(packs) for packs in step}) == 1, "ranks must hold equally many packs"
            found.append(identity([pack for packs in step for pack in packs]))
        state = loaders[-1].state_dict()
    assert found == expected


def test_state_is_a_few_integers_and_another_plan_is_refused(index, planner, make_planner):
    loader = PackLoader(index, planner)
    take(loader, 2)
    state = loader.state_dict()
    assert state == {"step": 2, "steps_per_era": planner.steps_per_era, "plan": planner.fingerprint}
    with pytest.raises(UserError, match="belongs to plan"):
        PackLoader(index, make_planner(index, seed=2)).load_state_dict(state)


def test_going_back_with_readers_running(index, planner):
    with PackLoader(index, planner, num_readers=2) as loader:
        state = loader.state_dict()
        first = identity(next(loader))
        take(loader, 3)
        loader.load_state_dict(state)
        assert identity(next(loader)) == first


def test_missing_packs_fill_up(index, planner):
    loaders = [PackLoader(index, planner, rank=r, world_size=3) for r in range(3)]
    packs = [pack for loader in loaders for pack in next(loader)]
    assert sorted(pack.number for pack in packs) == [-1, -1, 0, 1, 2, 3]
    empty = next(pack for pack in packs if pack.number == -1)
    assert empty.weight == 0 and empty.num_tokens == 1 and empty.num_samples == 1 and len(empty.tokens_LD) == 512
    assert loaders[0].idle_share == pytest.approx(1 / 3)


def test_too_many_ranks_are_refused_before_anything_runs(index, planner):
    with pytest.raises(UserError, match="5 ranks share 4 packs"):
        PackLoader(index, planner, world_size=5)


# ---- bad rows


@pytest.fixture
def damaged(tmp_path):
    """A dataset of its own whose third latent row has a flipped byte."""
    root = tmp_path / "damaged"
    write_dataset(str(root), SyntheticConfig(buckets={"1x64x64": 24}, heldout_every=0))
    return root


def flip(index, row, root):
    stream = index.streams[int(index.stream_of(np.array([row]))[0])]
    path = root / f"{stream.table}.lance" / stream.files[index.files[row]]
    with open(path, "r+b") as file:
        file.seek(int(index.positions[row]) + 5)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_a_flipped_byte_is_replaced_alike_everywhere_and_listed(make_index, make_planner, damaged, tmp_path, caplog):
    index = make_index(root=damaged)
    expected = [identity(step) for step in take(PackLoader(index, make_planner(index)), 3)]
    flip(index, 7, damaged)
    bad = bytes(index.latent_ids[7])
    path = tmp_path / "quarantine.jsonl"
    streams = []
    for world_size, readers, listed in ((1, 0, None), (2, 0, path), (1, 1, path)):
        loaders = [
            PackLoader(
                index, make_planner(index), rank=r, world_size=world_size, num_readers=readers, quarantine=listed
            )
            for r in range(world_size)
        ]
        streams.append([identity([p for loader in loaders for p in next(loader)]) for _ in range(3)])
        for loader in loaders:
            loader.close()
    assert streams[0] == streams[1] == streams[2]
    assert all(bad not in {name for name, _ in step} for step in streams[0])
    for step, whole in zip(streams[0], expected):
        assert len(step) == len(whole) and len(set(whole) - set(step)) == sum(name == bad for name, _ in whole)
    (line,) = set(path.read_text().splitlines())  # two ranks may both find it
    assert f'"row_id": {int(index.row_ids[7])}' in line and "checksum" in line and "latents/synthetic/1x64x64" in line
    assert "bad row, replaced" in caplog.text


def test_another_run_knows_what_one_found_bad(make_index, make_planner, damaged, tmp_path, caplog):
    index = make_index(root=damaged)
    flip(index, 7, damaged)
    first = PackLoader(index, make_planner(index), quarantine=tmp_path / "first.jsonl")
    expected = [identity(step) for step in take(first, 3)]
    (line,) = (damaged / "quarantine.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert set(entry) == {"table", "version", "row_id", "key", "reason"}, "as `vidpipe verify` reads it"
    assert entry["key"] == bytes(index.latent_ids[7]).hex() and entry["row_id"] == int(index.row_ids[7])
    caplog.clear()
    other = PackLoader(index, make_planner(index), config=LoaderConfig(max_bad_rows=0), quarantine=tmp_path / "2.jsonl")
    assert [identity(step) for step in take(other, 3)] == expected
    assert not caplog.text and not (tmp_path / "2.jsonl").exists()


def test_a_list_that_is_none_is_refused_with_its_line(make_index, make_planner, damaged):
    (damaged / "quarantine.jsonl").write_text("nonsense\n")
    index = make_index(root=damaged)
    with pytest.raises(UserError, match=r"quarantine .*quarantine.jsonl: line 1 is not an entry"):
        PackLoader(index, make_planner(index))


def test_bad_rows_beyond_the_budget_stop_the_run(make_index, make_planner, damaged):
    index = make_index(root=damaged)
    for row in (1, 5, 9):
        flip(index, row, damaged)
    with pytest.raises(UserError, match=r"3 bad rows, more than max_bad_rows = 2.*vidpipe verify"):
        take(PackLoader(index, make_planner(index), config=LoaderConfig(max_bad_rows=2)), 5)


def test_values_that_are_not_finite_and_truncated_files_are_bad(make_index, make_planner, damaged, tmp_path):
    index = make_index(root=damaged)
    stream = index.streams[0]
    path = damaged / f"{stream.table}.lance" / stream.files[index.files[3]]
    payload = bytearray(stream.latent_bytes)
    payload[1] = 0x7F
    payload[0] = 0xC0  # a NaN
    with open(path, "r+b") as file:
        file.seek(int(index.positions[3]))
        file.write(payload)
    crcs = np.load(index.folder / "crc32s.npy")
    crcs[3] = zlib.crc32(payload)
    np.save(index.folder / "crc32s.npy", crcs)
    index = type(index)(index.folder)
    os.truncate(path, int(index.positions[20]) + 10)
    listed = tmp_path / "q.jsonl"
    take(PackLoader(index, make_planner(index), quarantine=listed), 3)
    text = listed.read_text()
    assert text.count("\n") == 5 and "not finite" in text and "short" in text


def test_a_bad_text_row_replaces_its_sample(make_index, make_planner, damaged, tmp_path):
    index = make_index(root=damaged, captions={"sidecar": 1.0})
    table = index.texts[0]
    text = int(index.caption_texts[0])
    path = damaged / f"{table.table}.lance" / table.files[index.text_files[text]]
    with open(path, "r+b") as file:
        file.seek(int(index.text_positions[text]))
        file.write(b"\xff\xff")
    steps = take(PackLoader(index, make_planner(index), quarantine=tmp_path / "q.jsonl"), 4)
    users = {bytes(index.latent_ids[row]) for row in range(len(index)) if index.caption_texts[row] == text}
    assert users and not users & {name for packs in steps for pack in packs for name in pack.latent_ids}
    assert sum(pack.num_replaced for packs in steps for pack in packs) > 0
    assert "text/synthetic" in (tmp_path / "q.jsonl").read_text()


# ---- ways of reading


def test_reading_through_lance_gives_the_same(index, planner):
    fast = next(PackLoader(index, planner))
    slow = next(PackLoader(index, planner, config=LoaderConfig(fast_path=False)))
    for a, b in zip(fast, slow):
        assert torch.equal(a.tokens_LD.view(torch.int16), b.tokens_LD.view(torch.int16))
        assert torch.equal(a.text_LD.view(torch.int16), b.text_LD.view(torch.int16))


def test_payload_files_that_lie_otherwise_are_noticed(index, planner, monkeypatch, caplog):
    expected = next(PackLoader(index, planner))
    monkeypatch.setattr(blobs.BlobTable, "_read_files", lambda self, rows, out, examine=True: {})  # zeros
    found = next(PackLoader(index, planner))
    assert "not laid out as expected" in caplog.text
    assert torch.equal(found[0].tokens_LD.view(torch.int16), expected[0].tokens_LD.view(torch.int16))


def test_neighbours_are_read_in_one_request(index, make_planner):
    planner = make_planner(index, read_bytes=8192)
    loader = PackLoader(index, planner)
    packs = next(loader)
    stream = index.streams[0]
    requests = loader._source._fetchers[0]._tables[0, stream.table].num_requests
    images = sum(int((pack.rows < stream.stop).sum()) for pack in packs)
    assert images > 16 and requests < 0.6 * images + 2  # two more compare ways of reading


def test_without_copies_blocks_look_at_shared_memory(index, planner):
    expected = next(PackLoader(index, planner))[0]
    with PackLoader(index, planner, num_readers=1, copy=False) as loader:
        pack = next(loader)[0]
        assert len(pack.tokens_LD) == 0 and sum(len(b.latents_NCTHW) for b in pack.blocks) == pack.num_samples
        latent = pack.blocks[0].latents_NCTHW[0]
        tokens = expected.tokens_LD[: expected.cu_seqlens[1]]
        assert torch.equal(unpatchify(tokens, expected.grid_thw[0], 16, (1, 2, 2)), latent)
        del pack, latent


def test_a_buffer_says_what_was_laid_out(index, planner):
    from trainer.data.read import PackFetcher, ReadConfig

    fetcher = PackFetcher(index, 1, ReadConfig())
    plan = planner.step(0)[0]
    layout = fetcher.lay_out(plan.rows, plan.visits)
    buffer = memoryview(bytearray(layout.size_bytes))
    assert fetcher.fetch(layout, buffer) == []
    raw = RawPack.parse(buffer)
    assert raw.layout.rows.tolist() == plan.rows.tolist() and raw.layout.visits.tolist() == plan.visits.tolist()
    assert len(raw.latents) == layout.latent_bytes and len(raw.texts) == layout.text_bytes


# ---- processes


def test_a_pack_larger_than_the_ring_names_the_setting(index, planner):
    with (
        PackLoader(index, planner, config=LoaderConfig(num_readers=1, ring_bytes=4096)) as loader,
        pytest.raises(UserError, match=r"raise loader.ring_bytes"),
    ):
        next(loader)


def test_a_killed_reader_stops_the_run(index, planner):
    with PackLoader(index, planner, num_readers=2) as loader:
        next(loader)
        os.kill(loader._source._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="reader-0 ended with exit code -9"):
            take(loader, 50)


def test_processes_end_with_the_training_process(index, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"""
import os, pathlib, time
from trainer.data.index import Index
from trainer.data.loader import PackLoader
from trainer.data.packing import FlopModel
from trainer.data.plan import PlanConfig, Planner
if __name__ == "__main__":
    index = Index(pathlib.Path({str(index.folder)!r}))
    planner = Planner(index, PlanConfig(token_budget=512, packs_per_step=4), FlopModel(quadratic=1.0, linear=1000.0))
    loader = PackLoader(index, planner, num_readers=1)
    next(loader)
    print(*(p.pid for p in loader._source._processes), flush=True)
    time.sleep(60)
"""
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waiting_names_its_cause(index, planner, monkeypatch):
    from trainer.data.read import PackFetcher

    slow = PackFetcher.fetch
    monkeypatch.setattr(PackFetcher, "fetch", lambda *args: time.sleep(0.1) or slow(*args))
    loader = PackLoader(index, planner)
    next(loader)
    assert loader.wait_seconds > 0.4 and loader.wait_cause.startswith("readers")


# ---- phases


def test_phases_follow_each_other_under_one_cursor(make_index, make_planner):
    images, clips = make_index(buckets=("1x64x64",)), make_index(buckets=("17x64x64",))
    schedule = Schedule(
        [
            Phase(planner=make_planner(images, token_budget=256), num_steps=3),
            Phase(planner=make_planner(clips, token_budget=400, packs_per_step=2)),
        ]
    )
    loader = PackLoader(images, schedule)
    steps = take(loader, 5)
    assert [pack.grid_thw[0].tolist() for packs in steps for pack in packs[:1]] == [[1, 4, 4]] * 3 + [[5, 4, 4]] * 2
    assert [len(packs) for packs in steps] == [4, 4, 4, 2, 2]
    assert [packs[0].step for packs in steps] == [0, 1, 2, 3, 4]
    again = PackLoader(images, schedule)
    again.load_state_dict({**loader.state_dict(), "step": 4})
    assert identity(next(again)) == identity(steps[4])


def test_a_phase_without_a_length_must_be_the_last(make_index, make_planner):
    planner = make_planner(make_index())
    with pytest.raises(UserError, match="each phase but the last"):
        Schedule([Phase(planner=planner), Phase(planner=planner)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_is_not_finite_is_seen_wherever_it_is(dtype):
    kind = getattr(torch, dtype)
    limits = torch.finfo(kind)
    good = torch.tensor([0.0, -0.0, limits.max, limits.min, limits.tiny, -1.5] * 50, dtype=kind)
    assert blobs.all_finite(memoryview(good.view(torch.uint8).numpy()), dtype)
    for value in (float("inf"), float("-inf"), float("nan"), -float("nan")):
        for place in (0, 137, 299):
            wrong = good.clone()
            wrong[place] = value
            assert not blobs.all_finite(memoryview(wrong.view(torch.uint8).numpy()), dtype)
