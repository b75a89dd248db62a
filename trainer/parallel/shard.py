"""Spread a model over a world: FSDP2 block by block, activation checkpointing and compilation of blocks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.parallel.world import ParallelConfig, World


def spread(model: nn.Module, config: ParallelConfig, world: World) -> nn.Module:
    """Prepare `model` for training in place: checkpointing, then compilation, then sharding, as torchtitan orders them.

    All ranks must hold the same parameters when they call it; each then keeps its shard. `model.block_modules()` names
    the parts that are treated one by one, `model.float32_modules()` those that compute in float32 whatever the dtype.
    """
    blocks: list[nn.Module] = model.block_modules()  # type: ignore[operator]
    for block in blocks:
        if config.activation_checkpointing:
            _checkpoint(block)
        if config.compile:
            block.compile(dynamic=True)
    if world.mesh is None:
        return model
    policy = MixedPrecisionPolicy(param_dtype=world.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in model.float32_modules():  # type: ignore[operator]
        fully_shard(module, mesh=world.mesh, mp_policy=exact, reshard_after_forward=config.reshard_after_forward)
    for block in blocks:
        fully_shard(block, mesh=world.mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    fully_shard(model, mesh=world.mesh, mp_policy=policy)
    return model


def _checkpoint(block: nn.Module) -> None:
    """Wrap forward instead of the module, so that parameter names stay those of the checkpoint format."""
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def recomputing(*args: object) -> object:
        return checkpoint(forward, *args, use_reentrant=False) if torch.is_grad_enabled() else forward(*args)

    block.forward = recomputing  # type: ignore[method-assign, assignment]


def set_last_pack(model: nn.Module, is_last: bool, config: ParallelConfig) -> None:
    """Say whether the next backward pass is a step's last, when gradients are reduced."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or config.sync_every_pack)
        model.set_is_last_backward(is_last)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor, gathered if it is sharded; all ranks call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def settle(model: nn.Module) -> None:
    """After a forward pass without backward: give up what is still gathered, so that parameters are shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
