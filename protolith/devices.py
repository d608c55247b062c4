"""Exact sums on every device: Apple's MPS has no float64, and a client computes where its network is."""

import torch
from torch import Tensor


def exact(tensor: Tensor) -> Tensor:
    """A tensor's numbers in float64, on the CPU; first it moves, then it is converted, as MPS can do no more."""
    return tensor.detach().cpu().double()


def widest(device: torch.device) -> torch.dtype:
    """The widest floats of a device, for sums that are not worth a wait for it."""
    return torch.float32 if device.type == "mps" else torch.float64
