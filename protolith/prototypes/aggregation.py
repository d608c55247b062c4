"""What the server makes of the clients' class prototypes, one vector per class."""

import torch
from torch import Tensor

NO_SPREAD = 1e-12  # sum of squared distances from which on prototypes count as identical


def average(prototypes: Tensor, counts: Tensor, *, weighted: bool = False) -> tuple[Tensor, Tensor]:
    """Average each class over the clients that hold it, equally or by their counts: [K, d] and present [K].

    FPL Eq. 3, FedAPC Eq. 4, FedCode Eq. 4 and FedProto (equally); FedProc and FedPAC (by counts).
    """
    weights = _shares((counts if weighted else counts > 0).double())
    return _combine(prototypes, weights), (counts > 0).any(dim=0)


def reweight(prototypes: Tensor, counts: Tensor, cap: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Weigh each client's prototype by its squared distance from the class's mean (I2PFL Eqs. 3-4).

    Returns [K, d], present [K] and the weights [M, K]. The weights are equal where there is no spread to
    weigh by: one contributor, or identical prototypes. With a `cap` (ours, not the paper's) no weight is above
    cap / (number of clients that hold the class).
    """
    held = (counts > 0).double()
    equal = _shares(held)
    means = _combine(prototypes.double(), equal)
    distances = (prototypes.double() - means).square().sum(dim=2) * held
    spread = (distances.sum(dim=0) > NO_SPREAD) & (held.sum(dim=0) > 1)
    weights = torch.where(spread, _shares(distances), equal)
    if cap:
        weights = capped(weights, held, cap)
    return _combine(prototypes, weights), (counts > 0).any(dim=0), weights.to(prototypes.dtype)


def capped(weights: Tensor, held: Tensor, cap: float) -> Tensor:
    """Limit weights [M, K] that sum to one to cap / M; the excess goes to the others in proportion to theirs.

    Where all others have no weight they share it equally. `cap` is 1 (all alike) or more.
    """
    held = held > 0
    most = cap / held.sum(dim=0).clamp_min(1)
    full = torch.zeros_like(held)
    for _ in range(len(weights)):  # a client that receives some of the excess may be the next to reach the limit
        free = held & ~full
        rest = 1.0 - most * full.sum(dim=0)
        share = torch.where((weights * free).sum(dim=0) > 0, weights * free, free.to(weights))
        weights = torch.where(full, most, _shares(share) * rest)
        reached = full | (held & (weights >= most))
        if torch.equal(reached, full):
            break
        full = reached
    return torch.minimum(weights, most)


def ema(
    previous: Tensor, previous_present: Tensor, new: Tensor, new_present: Tensor, new_weight: float
) -> tuple[Tensor, Tensor]:
    """Move the previous prototypes to the new: w · new + (1 − w) · previous, and present [K] (I2PFL Eq. 5).

    A class that has only one of the two takes it as it is: new classes start, classes that nobody sent stay.
    """
    had, has = previous_present > 0, new_present > 0
    one_of_two = torch.where(has[:, None], new, previous)
    moved = new_weight * new + (1.0 - new_weight) * previous
    return torch.where((had & has)[:, None], moved, one_of_two), had | has


def keep_previous(
    previous: Tensor, previous_present: Tensor, new: Tensor, new_present: Tensor
) -> tuple[Tensor, Tensor]:
    """Take the new prototypes, and for classes that nobody sent the previous ones: [K, d] and present [K]."""
    return ema(previous, previous_present, new, new_present, new_weight=1.0)


def _shares(weights: Tensor) -> Tensor:
    """Scale weights [M, K] to sum to one over the clients; zeros where a class has none."""
    totals = weights.sum(dim=0)
    return weights / torch.where(totals > 0, totals, 1.0)


def _combine(prototypes: Tensor, weights: Tensor) -> Tensor:
    """Add the clients' prototypes up by weight, in float64."""
    return torch.einsum("mk,mkd->kd", weights, prototypes.double()).to(prototypes.dtype)
