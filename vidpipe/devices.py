"""Which device models run on: asked where they run, since a coordinator may sit on a machine without GPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from schemas.errors import UserError


def resolve(device: str) -> str:
    """`auto` becomes `cuda` where PyTorch sees a GPU, else `cpu`.

    Raises:
        UserError: a GPU is asked for and there is none here.
    """
    if device == "cpu":
        return device
    import torch

    if torch.cuda.is_available():
        return "cuda" if device == "auto" else device
    if device != "auto":
        raise UserError(
            f"engine.device = {device!r}: PyTorch sees no GPU on {socket.gethostname()}; see vidpipe doctor"
        )
    return "cpu"


def local_gpus(device: str) -> Sequence[str]:
    """Names of this machine's GPUs for CUDA_VISIBLE_DEVICES, of those that are visible here; none for `cpu`."""
    if resolve(device) == "cpu":
        return ()
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    return [name.strip() for name in names][: torch.cuda.device_count()]
