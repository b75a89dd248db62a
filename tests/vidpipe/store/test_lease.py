"""One coordinator a stage; who may take over, when, and what that does to the one before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from schemas.errors import UserError
from schemas.layout import outcomes_name
from vidpipe.store.lease import KEY, Lease, LeaseConfig, LeaseHeld, LeaseLost
from vidpipe.store.process import ProcessIdentity

STAGE = "encode"
NAME = outcomes_name(STAGE)
PATIENT = LeaseConfig(lease_seconds=30, beat_seconds=0.1)
HASTY = LeaseConfig(lease_seconds=0.5, beat_seconds=0.1)


def silence(lease: Lease) -> None:
    """Stop its heartbeat, as in a paused process."""
    lease._beat.stop()


def beats(dataset) -> list[str]:
    return [name for name in dataset.files.list("outcomes") if name.endswith(".json")]


def rewrite_beat(dataset, **changes) -> None:
    [name] = beats(dataset)
    values = json.loads(dataset.files.read(f"outcomes/{name}"))
    values["process"].update(changes)
    dataset.files.write(f"outcomes/{name}", json.dumps(values).encode())


def test_epochs_count_the_coordinators(dataset):
    for epoch in (1, 2, 3):
        with Lease.acquire(dataset, STAGE, PATIENT) as lease:
            assert lease.epoch == epoch
            lease.check()
    assert len(beats(dataset)) == 1


def test_renewals_make_no_table_versions(dataset):
    with Lease.acquire(dataset, STAGE, LeaseConfig(lease_seconds=0.2, beat_seconds=0.02)):
        version = dataset.table(NAME).version
        time.sleep(0.3)
        assert dataset.table(NAME).version == version


def test_two_stages_do_not_meet(dataset):
    with Lease.acquire(dataset, STAGE), Lease.acquire(dataset, "caption"):
        pass


def test_a_living_holder_is_named_at_once(dataset):
    with Lease.acquire(dataset, STAGE, PATIENT):
        started = time.monotonic()
        with pytest.raises(LeaseHeld, match=f"stage encode of {dataset.root}: process {os.getpid()} on "):
            Lease.acquire(dataset, STAGE, PATIENT)
        assert time.monotonic() - started < 5


def test_a_dead_process_of_this_machine_is_replaced_at_once(dataset):
    code = (
        "import sys, os; from vidpipe.store.dataset import Dataset; from vidpipe.store.lease import Lease; "
        "Lease.acquire(Dataset(sys.argv[1]), 'encode'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, dataset.root], check=False, timeout=60)
    started = time.monotonic()
    with Lease.acquire(dataset, STAGE, PATIENT) as lease:
        assert lease.epoch == 2
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("changes", [{"pid": 1, "started": 1}, {"started": 5}], ids=["another", "number reused"])
def test_a_number_that_another_process_has_now_is_a_dead_process(dataset, changes):
    silence(Lease.acquire(dataset, STAGE, PATIENT))
    rewrite_beat(dataset, **changes)
    Lease.acquire(dataset, STAGE, PATIENT).release()


def test_a_process_elsewhere_is_only_replaced_after_its_lease(dataset):
    silence(Lease.acquire(dataset, STAGE, PATIENT))
    rewrite_beat(dataset, boot="another machine", started=5)
    started = time.monotonic()
    with Lease.acquire(dataset, STAGE, HASTY):
        assert time.monotonic() - started >= HASTY.lease_seconds


def test_a_silent_holder_loses_its_lease(dataset):
    old = Lease.acquire(dataset, STAGE, PATIENT)
    silence(old)
    with Lease.acquire(dataset, STAGE, HASTY) as new:
        assert new.epoch == 2
        with pytest.raises(LeaseLost, match=r"epoch 1.*another one took over \(epoch 2\)"):
            old.check()
        new.check()
        old._beat.write()  # the woken one's heartbeat goes to its own file
        new.check()
        with pytest.raises(LeaseHeld):
            Lease.acquire(dataset, STAGE, PATIENT)


def test_a_takeover_fences_every_registered_table(dataset, rows):
    with Lease.acquire(dataset, STAGE) as lease:
        lease.register(rows.table)
        lease.register(rows.table)
        assert lease.tables() == [rows.table]
    before = dataset.table(rows.table).version
    with Lease.acquire(dataset, STAGE) as lease:
        assert dataset.table(rows.table).version == before + 1
        assert lease.tables() == [rows.table]


def test_of_several_contenders_one_wins(dataset):
    silence(Lease.acquire(dataset, STAGE, PATIENT))
    rewrite_beat(dataset, started=5)
    won: list[Lease] = []
    lost: list[str] = []

    def contend() -> None:
        try:
            won.append(Lease.acquire(dataset, STAGE, PATIENT))
        except LeaseHeld as error:
            lost.append(str(error))

    threads = [threading.Thread(target=contend) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 4)
    assert json.loads(dataset.table(NAME).config()[KEY]) == {"epoch": 2, "owner": won[0].owner}
    won[0].release()


def test_on_an_object_store(s3_root, rows):
    from vidpipe.store.dataset import Dataset

    dataset = Dataset(s3_root).create()
    old = Lease.acquire(dataset, STAGE, PATIENT)
    with pytest.raises(LeaseHeld):
        Lease.acquire(dataset, STAGE, PATIENT)
    silence(old)
    with Lease.acquire(dataset, STAGE, HASTY) as new, pytest.raises(LeaseLost):
        assert new.epoch == 2
        old.check()


def test_a_lease_shorter_than_its_beats_is_refused():
    with pytest.raises(UserError, match="at most a quarter of lease_seconds"):
        LeaseConfig(lease_seconds=4, beat_seconds=2)


def test_process_identity():
    me = ProcessIdentity.current()
    assert me.pid == os.getpid()
    assert ProcessIdentity.from_mapping(json.loads(json.dumps(me.to_mapping()))) == me
    assert not me.is_dead_here()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        identity = ProcessIdentity(host="h", boot=me.boot, pid=child.pid, started=int(stat[19]))
        assert not identity.is_dead_here()
        child.kill()
        deadline = time.monotonic() + 10
        while not identity.is_dead_here():  # a zombie is dead too
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert identity.is_dead_here()
    elsewhere = ProcessIdentity(host="h", boot="elsewhere", pid=child.pid, started=int(stat[19]))
    assert not elsewhere.is_dead_here()
