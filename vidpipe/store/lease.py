"""The lease of (dataset, stage): who coordinates, and why a coordinator that lost it can commit nothing.

The record is one key in the config of `outcomes/<stage>.lance`: an epoch and an owner. Two takeovers from the same
version conflict, so one of them wins. Renewals go to a small file of the owner's own beside the table (they would
otherwise be a table version every few seconds; one file for all could be overwritten by a paused coordinator):

    outcomes/<stage>.lease-<owner>.json     owner, process, counter

A contender takes over at once if the holder has released it or is a dead process of this very machine; otherwise only
after the counter stood still for `lease_seconds` of the contender's own clock: no clocks are compared.

A takeover alone stops nobody. So the new owner makes an empty fenced commit on every table that the stage commits to
(they are registered in the same config before the first commit). The old owner commits in the order: register, open
the table, check the lease, commit. If it opened the table before the fence, Lance refuses the commit; if after, the
check, which reads the newest config, finds the new owner.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from schemas.layout import outcomes_name
from schemas.tables import OUTCOMES
from vidpipe.store import failpoints
from vidpipe.store.fence import fence
from vidpipe.store.process import ProcessIdentity

if TYPE_CHECKING:
    import lance

    from vidpipe.store.dataset import Dataset

KEY = "vidpipe.coordinator"
TABLE_PREFIX = "vidpipe.table."
_LOG = logging.getLogger(__name__)


class LeaseHeld(UserError):
    """Another coordinator runs this stage of this dataset."""


class LeaseLost(RuntimeError):
    """This coordinator's lease was taken over; nothing that it commits from now on is accepted."""


@dataclass(frozen=True, kw_only=True)
class LeaseConfig:
    """How long a holder may be silent.

    Attributes:
        lease_seconds: silence after which another coordinator takes over.
        beat_seconds: time between renewals; at most a quarter of `lease_seconds`.
    """

    lease_seconds: float = 60.0
    beat_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.beat_seconds <= self.lease_seconds / 4:
            raise UserError(
                f"lease: beat_seconds {self.beat_seconds} must be positive and at most a quarter of lease_seconds "
                f"{self.lease_seconds}"
            )


class Lease:
    """A held lease, renewed by a thread until `release`. Use `Lease.acquire`; a context manager."""

    def __init__(self, dataset: Dataset, stage: str, owner: str, epoch: int, beat: _Heartbeat):
        self.dataset = dataset
        self.stage = stage
        self.owner = owner
        self.epoch = epoch
        self.table = outcomes_name(stage)
        self._beat = beat
        self._registered: set[str] = set()

    @classmethod
    def acquire(cls, dataset: Dataset, stage: str, config: LeaseConfig | None = None) -> Lease:
        """Become the coordinator of `stage`, waiting up to `lease_seconds` to see whether a silent holder is gone.

        Creates `outcomes/<stage>` if it is not there.

        Raises:
            LeaseHeld: another coordinator is alive.
        """
        config = config or LeaseConfig()
        name = outcomes_name(stage)
        dataset.ensure(name, OUTCOMES)
        beat = _Heartbeat(dataset, stage, config)
        while True:
            table = dataset.table(name)
            held = json.loads(table.config().get(KEY, "null"))
            if held:
                _wait_until_gone(dataset, stage, held, config)
            beat.write()
            failpoints.reach("lease:beat-written")
            epoch = held["epoch"] + 1 if held else 1
            if _record(table, {KEY: json.dumps({"epoch": epoch, "owner": beat.owner})}):
                break
            beat.remove()
        failpoints.reach("lease:recorded")
        beat.start()
        lease = cls(dataset, stage, beat.owner, epoch, beat)
        try:
            lease._fence_all()
        except BaseException:
            lease.release()
            raise
        if held:
            dataset.files.remove(_beat_file(stage, held["owner"]))
        return lease

    def _fence_all(self) -> None:
        """Make every commit fail that an earlier owner prepared before now."""
        for name in [*self.tables(), self.table]:
            fence(self.dataset, name)
            failpoints.reach("lease:fenced")

    def register(self, name: str) -> None:
        """Note that this stage commits to table `name`, so that a takeover fences it; before opening the table."""
        if name in self._registered:
            return
        while TABLE_PREFIX + name not in (table := self.dataset.table(self.table)).config():
            if _record(table, {TABLE_PREFIX + name: "1"}):
                break
        self._registered.add(name)

    def tables(self) -> list[str]:
        """Names of the tables that this stage has committed to, sorted; the outcomes are not among them."""
        return registered(self.dataset, self.table)

    def check(self) -> None:
        """Raise LeaseLost unless this is still the owner by the newest record."""
        held = json.loads(self.dataset.table(self.table).config().get(KEY, "null"))
        if not held or held["owner"] != self.owner:
            raise LeaseLost(
                f"stage {self.stage} of {self.dataset.root}: this coordinator (epoch {self.epoch}) was silent too long "
                f"and another one took over (epoch {held['epoch'] if held else 'unknown'}); nothing committed is lost"
            )

    def release(self) -> None:
        """Stop renewing, and let the next coordinator in at once."""
        self._beat.stop(released=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def registered(dataset: Dataset, outcomes: str) -> list[str]:
    """Names of the tables that an outcomes table's config says its stage commits to, sorted."""
    config = dataset.table(outcomes).config()
    return sorted(k.removeprefix(TABLE_PREFIX) for k in config if k.startswith(TABLE_PREFIX))


def holder(dataset: Dataset, stage: str) -> ProcessIdentity | None:
    """Process that coordinates a stage, as far as its last renewal tells; None if it ended, or died on this host."""
    held = json.loads(dataset.table(outcomes_name(stage)).config().get(KEY, "null"))
    seen = dataset.files.read(_beat_file(stage, held["owner"])) if held else None
    if seen is None:
        return None
    beat = json.loads(seen)
    process = ProcessIdentity.from_mapping(beat["process"])
    return None if beat["released"] or process.is_dead_here() else process


def _record(table: lance.LanceDataset, values: dict[str, str | None]) -> bool:
    """Write config keys on top of exactly this version; False if another writer of a same key came first."""
    import lance
    from lance.commit import CommitConflictError

    update = lance.LanceOperation.UpdateConfig(config_updates=lance.LanceOperation.UpdateMap(values))
    try:
        lance.LanceDataset.commit(table, update, read_version=table.version)
    except CommitConflictError:
        return False
    return True


def _beat_file(stage: str, owner: str) -> str:
    return f"{outcomes_name(stage)}.lease-{owner}.json"


def _wait_until_gone(dataset: Dataset, stage: str, held: dict[str, Any], config: LeaseConfig) -> None:
    """Return once the holder is known or believed dead; raise LeaseHeld as soon as it is known to live."""
    name = _beat_file(stage, held["owner"])
    first = dataset.files.read(name)
    started = time.monotonic()
    while time.monotonic() - started < config.lease_seconds:
        seen = dataset.files.read(name)
        if seen is None:
            return
        beat = json.loads(seen)
        process = ProcessIdentity.from_mapping(beat["process"])
        if beat["released"] or process.is_dead_here():
            return
        if seen != first:
            raise LeaseHeld(
                f"stage {stage} of {dataset.root}: process {process.pid} on {process.host} is running it; "
                "wait until it ends, or stop it"
            )
        time.sleep(min(0.2, config.beat_seconds / 2))
    _LOG.warning(
        "stage %s of %s: its coordinator was silent for %g s; taking over", stage, dataset.root, config.lease_seconds
    )


class _Heartbeat:
    """The owner's file with its counter."""

    def __init__(self, dataset: Dataset, stage: str, config: LeaseConfig):
        self.owner = uuid.uuid4().hex
        self._files = dataset.files
        self._name = _beat_file(stage, self.owner)
        self._period_seconds = config.beat_seconds
        self._process = ProcessIdentity.current()
        self._counter = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, released: bool = False) -> None:
        self._counter += 1
        text = {
            "owner": self.owner,
            "process": self._process.to_mapping(),
            "counter": self._counter,
            "released": released,
        }
        self._files.write(self._name, json.dumps(text).encode())

    def remove(self) -> None:
        self._files.remove(self._name)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="vidpipe-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._period_seconds):
            try:
                self.write()
            except OSError as error:  # the next beat may get through; silence costs the lease, not the data
                _LOG.warning("lease not renewed: %s", error)

    def stop(self, released: bool = False) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
            self._thread = None
            if released:
                self.write(released=True)
