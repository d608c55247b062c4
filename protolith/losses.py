"""The losses that methods compose: vectorised, finite at tiny temperatures and for all-zero features.

`features` are [B, d] and `labels` [B]. Class prototypes are [K, d] with `present` [K] (booleans or counts);
the rows of absent classes are zeros. A sample whose class has no prototype contributes nothing: a term is the
mean over the samples that contribute, and a zero that can still be differentiated when there are none.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-8  # a vector shorter than this has no direction: its cosine is 0 and so is its gradient
LEAST_COSINE = 1e-6  # below it a power with exponent < 1 is NaN (negative cosine) or too steep (near 0)


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors to length one; those shorter than `EPS` become zero, without gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return torch.where(length > EPS, vectors / length.clamp_min(EPS), 0.0)


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Average features by class, with gradient: means [K, d] (zeros for absent classes) and counts [K]."""
    sums = features.new_zeros(classes, features.shape[1]).index_add(0, labels, features)
    counts = torch.bincount(labels, minlength=classes)
    return sums / counts.clamp_min(1).to(features.dtype)[:, None], counts


def contrast(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    prototype_labels: Tensor,
    tau: float,
    *,
    extra_negatives: Tensor | None = None,
    sharpness: float | None = None,
) -> Tensor:
    """Contrast features with labelled prototypes: −log Σ_{c of class y} e^{s/τ} / Σ_c e^{s/τ}, s = cos(z, c).

    FPL Eq. 8 (several prototypes per class), I2PFL Eq. 6 and FedAPC Eq. 5 (one per class), FedProc (τ = 1).
    `extra_negatives` [B, E, d], vectors of each sample's own, join its denominator (FedCode Eqs. 11 and 13).
    With `sharpness` α, s = cos^α (FedPLVM).
    """
    directions = unit(features)
    cosines = directions @ unit(prototypes.to(features)).T
    positive = labels[:, None] == prototype_labels[None, :]
    if extra_negatives is not None:
        negatives = torch.einsum("bd,bed->be", directions, unit(extra_negatives.to(features)))
        cosines = torch.cat([cosines, negatives], dim=1)
        positive = functional.pad(positive, (0, negatives.shape[1]), value=False)
    if sharpness is not None:
        cosines = cosines.clamp(LEAST_COSINE, 1.0) ** sharpness
    log_shares = torch.log_softmax(cosines / tau, dim=1)
    # The lowest finite number, not −inf: a row without positives must not bring NaN into the backward pass.
    positives = log_shares.masked_fill(~positive, torch.finfo(log_shares.dtype).min)
    return _mean_over(-torch.logsumexp(positives, dim=1), positive.any(dim=1))


def align(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    *,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Pull features to their class's prototype: squared distance, as mean or sum over the dimensions.

    FPL Eq. 10 (printed as the sum; its code takes the mean), FedProto, FedPAC.
    """
    squares = (features - prototypes.to(features)[labels]).square()
    distances = squares.mean(dim=1) if reduction == "mean" else squares.sum(dim=1)
    return _mean_over(distances, present[labels] > 0)


def cosine_align(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Turn features to their class's prototype: 2 · mean (1 − cos)² (FedPLVM's L_cor)."""
    cosines = (unit(features) * unit(prototypes.to(features))[labels]).sum(dim=1)
    return 2.0 * _mean_over((1.0 - cosines).square(), present[labels] > 0)


def orthogonality(style: Tensor, semantic: Tensor) -> Tensor:
    """Keep style and semantic features apart: mean of Σ_v |zs_v zc_v| / (‖zs‖ ‖zc‖) (FedCode Eq. 14)."""
    return (unit(style) * unit(semantic)).abs().sum(dim=1).mean()


def model_contrast(features: Tensor, from_global: Tensor, from_previous: Tensor, tau: float) -> Tensor:
    """Pull features to the global model's and push them from the previous local model's (MOON's ℓ_con)."""
    directions = unit(features)
    to_global = (directions * unit(from_global)).sum(dim=1)
    to_previous = (directions * unit(from_previous)).sum(dim=1)
    # −log e^a / (e^a + e^b) = log(1 + e^{b − a})
    return functional.softplus((to_previous - to_global) / tau).mean()


def proximal(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """Keep parameters near their anchors: ½ ‖θ − θ^t‖² over all of them (FedProx, FedDyn)."""
    return 0.5 * _total((theta - anchor).square().sum() for theta, anchor in zip(parameters, anchors, strict=True))


def inner_product(parameters: Iterable[Tensor], directions: Iterable[Tensor]) -> Tensor:
    """Return ⟨θ, v⟩ over all parameters; FedDyn is CE + α (⟨θ, h⟩ + ½ ‖θ − θ^t‖²)."""
    return _total((theta * v).sum() for theta, v in zip(parameters, directions, strict=True))


def different_class_partner(labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw for each sample another one of the batch with a different label, uniformly.

    In a batch of one class each sample is its own partner, so that mixing changes nothing (as with γ = 1).
    """
    different = (labels[:, None] != labels[None, :]).cpu()  # where the generators live, whatever the device
    if not different.any():
        return torch.arange(len(labels), device=labels.device)
    return torch.multinomial(different.float(), 1, generator=generator).squeeze(1).to(labels.device)


def mixup_prototypes(
    features: Tensor, labels: Tensor, classes: int, gamma: float | Tensor, partner: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix features with their partners', h̃ = γ h_i + (1 − γ) h_j, and average by class (I2PFL Eqs. 7-8).

    `gamma` is one number or one per sample [B]; returns the mixed prototypes [K, d] and the counts [K].
    """
    share = gamma.to(features)[:, None] if isinstance(gamma, Tensor) and gamma.ndim else gamma
    return class_means(share * features + (1.0 - share) * features[partner], labels, classes)


def apa(
    features: Tensor,
    labels: Tensor,
    mixed: Tensor,
    present: Tensor,
    *,
    of: Literal["sample", "class"] = "sample",
    detach: bool = True,
) -> Tensor:
    """Align features, or their class means, with the mixed prototypes (I2PFL Eq. 9; mean over dimensions).

    `detach` keeps the mixed prototypes fixed: otherwise classes that collapse into one are a minimum too.
    """
    target = mixed.detach() if detach else mixed
    if of == "sample":
        return align(features, labels, target, present)
    means, counts = class_means(features, labels, len(mixed))
    return align(means, torch.arange(len(mixed), device=labels.device), target, (counts > 0) & (present > 0))


def _mean_over(values: Tensor, contributes: Tensor) -> Tensor:
    """Average the values that contribute; 0, with its graph, when none does."""
    return torch.where(contributes, values, 0.0).sum() / contributes.sum().clamp_min(1)


def _total(terms: Iterable[Tensor]) -> Tensor:
    """Add scalars up."""
    return torch.stack(list(terms)).sum()
