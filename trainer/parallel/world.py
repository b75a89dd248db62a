"""The processes of a run: ranks, device, mesh, and the few collectives that the loop needs.

Without `torchrun` a run is one process and needs no process group, unless its parameters are cast by FSDP (16-bit).
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from schemas.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the model is spread and computed.

    Attributes:
        replicate: copies of the sharded model (HSDP); each is sharded over world size / replicate ranks.
        dtype: of the forward and backward pass; parameters, gradients and optimizer state are float32. `auto`:
            bfloat16 on CUDA, float32 elsewhere.
        reshard_after_forward: free the gathered parameters after a block's forward pass and gather them again in its
            backward pass: less memory, more traffic.
        sync_every_pack: reduce gradients after each pack instead of after a step's last: less memory, more traffic.
        activation_checkpointing: keep only the blocks' inputs, and compute each block again in the backward pass.
        compile: torch.compile, block by block; packs then keep their padding, so that there is one shape.
    """

    replicate: int = 1
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    reshard_after_forward: bool = True
    sync_every_pack: bool = False
    activation_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.replicate < 1:
            raise UserError(f"replicate: expected at least 1, found {self.replicate}")


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """This process among the others.

    Attributes:
        rank, size: among all processes.
        device: where this rank computes.
        dtype: of the forward and backward pass.
        mesh: data-parallel mesh, ("replicate", "shard") or ("shard",); None where nothing is sharded.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    mesh: DeviceMesh | None = None

    @property
    def is_main(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, values: list[float]) -> torch.Tensor:
        """Every rank's values: float64 [size, len(values)] on the host."""
        own = torch.tensor(values, dtype=torch.float64)
        if self.size == 1:
            return own[None]
        parts = torch.empty(self.size, len(values), dtype=torch.float64)
        dist.all_gather(list(parts.unbind()), own, group=_host_group())
        return parts

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value, on all ranks."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=_host_group())
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        """Every rank's picklable value, on all ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=_host_group())
        return found

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(group=_host_group())


_HOST_GROUP: list[dist.ProcessGroup] = []


def _host_group() -> dist.ProcessGroup | None:
    """A group over gloo for values on the host; the default group where that is gloo itself."""
    if dist.get_backend() == "gloo":
        return None
    if not _HOST_GROUP:
        _HOST_GROUP.append(dist.new_group(backend="gloo"))  # all ranks come here together
    return _HOST_GROUP[0]


def start_world(config: ParallelConfig) -> World:
    """Join the run that `torchrun` started, or be a run of one process.

    Raises:
        UserError: `replicate` does not divide the number of processes.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(config.dtype)
    dtype = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    if size % config.replicate:
        raise UserError(f"parallel.replicate = {config.replicate} does not divide {size} processes")
    if size == 1 and dtype == torch.float32:
        return World(device=device, dtype=dtype)
    if not dist.is_initialized():
        backend = "nccl" if on_cuda else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend, device_id=device if on_cuda else None)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return World(rank=rank, size=size, device=device, dtype=dtype, mesh=_mesh(device, size, config.replicate))


_MESHES: list[DeviceMesh] = []


def _mesh(device: torch.device, size: int, replicate: int) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    if replicate > 1:
        mesh = init_device_mesh(device.type, (replicate, size // replicate), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    _MESHES.append(mesh)
    return mesh


def stop_world() -> None:
    """Leave the process group, if there is one, and end its threads; the sharded model must be out of use by then.

    gloo's threads drop the tensors of a collective after its `wait` has returned, and need the interpreter for it: one
    that is late when the process ends aborts it ("terminate called without an active exception", exit status 134). A
    group joins its threads when nothing holds it any more; meshes do, and live on in DTensor's caches.
    """
    _HOST_GROUP.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    for mesh in _MESHES:
        getattr(mesh, "_pg_registry", {}).clear()  # torch 2.12 and later keep groups there
    _MESHES.clear()
    gc.collect()
