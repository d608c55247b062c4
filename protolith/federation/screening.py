"""Uploads that are finite but absurd: their norms, compared with those of the round's other uploads.

A norm is judged by its logarithm, because norms differ by factors: z = (ln norm − median) / spread, with the median
over the uploads of the round and spread = 1.4826 · MAD, at least `LEAST_SPREAD`. Only norms that are too large count.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protolith.federation.setup import GuardSettings
from protolith.methods.averaging import is_buffer
from protolith.records import Record, Upload

FEW = 4  # of fewer uploads nobody can say which one is the odd one out
LEAST_SPREAD = 0.1  # a difference of ten per cent is never odd, however alike the others are
NORMAL = 1.4826  # MAD times this is the standard deviation of a normal distribution


@dataclass(frozen=True)
class Flag:
    """An upload of which one norm is far beyond the others'."""

    client: int
    what: str
    z: float
    limit: float  # the largest norm that would not have been flagged


class Screen:
    """The norms of a round's uploads."""

    def __init__(self, settings: GuardSettings, origin: Record) -> None:
        self.settings = settings
        self.origin = origin
        self.norms: dict[str, dict[int, float]] = {}  # what -> client -> norm

    def measure(self, upload: Upload) -> None:
        """Take down the norms of an upload."""
        for what, norm in norms(upload, self.origin).items():
            self.norms.setdefault(what, {})[upload.client] = norm

    def flags(self) -> list[Flag]:
        """Name the norms that are far beyond the others', in client order."""
        found = [flag for what, by_client in self.norms.items() for flag in outliers(what, by_client, self.settings.z)]
        return sorted(found, key=lambda flag: flag.client)

    def clip(self, upload: Upload, flags: list[Flag]) -> Upload:
        """Bring the flagged norms of an upload down to their limits."""
        for flag in flags:
            if flag.client == upload.client:
                upload = clipped(upload, flag, self.origin)
        return upload


def norms(upload: Upload, origin: Mapping[str, Tensor]) -> dict[str, float]:
    """Norms by what they are of: the move of the weights, that of BatchNorm's statistics, and each kind of knowledge.

    For points of several classes (`prototypes`) it is the largest norm of a point.
    """
    squares: dict[str, float] = {}
    for name, tensor in upload.weights.items():
        if tensor.is_floating_point():
            what = "statistics" if is_buffer(name) else "weights"
            move = torch.dist(tensor, origin[name]).item() if name in origin else _norm(tensor)
            squares[what] = squares.get(what, 0.0) + move**2
    found = {what: math.sqrt(total) for what, total in squares.items()}
    for name, tensor in upload.knowledge.items():
        what = name.split("/")[0]
        if tensor.is_floating_point() and tensor.dim() and tensor.numel():
            found[what] = math.hypot(found.get(what, 0.0), _norm(tensor) if "/" in name else _largest(tensor))
    return found


def outliers(what: str, by_client: Mapping[int, float], z: float) -> list[Flag]:
    """The clients whose norm is more than z robust deviations beyond the median of all."""
    positive = {client: math.log(norm) for client, norm in by_client.items() if norm > 0}
    if len(by_client) < FEW or 2 * len(positive) <= len(by_client):
        return []  # too few, or most sent nothing but zeros
    logs = [*positive.values(), *[-math.inf] * (len(by_client) - len(positive))]
    middle = statistics.median(logs)
    if not math.isfinite(middle):
        return []
    spread = max(NORMAL * statistics.median(abs(value - middle) for value in logs), LEAST_SPREAD)
    if not math.isfinite(spread):
        return []
    limit = math.exp(min(700.0, middle + z * spread))
    scores = {client: (value - middle) / spread for client, value in positive.items()}
    return [Flag(client, what, score, limit) for client, score in scores.items() if score > z]


def clipped(upload: Upload, flag: Flag, origin: Mapping[str, Tensor]) -> Upload:
    """An upload whose flagged norm is the largest that is not flagged."""
    whole = norms(upload, origin)[flag.what]
    if flag.what in ("weights", "statistics"):
        weights = dict(upload.weights)
        for name, tensor in weights.items():
            if tensor.is_floating_point() and is_buffer(name) == (flag.what == "statistics"):
                weights[name] = torch.lerp(origin.get(name, torch.zeros_like(tensor)), tensor, flag.limit / whole)
        return replace(upload, weights=weights)
    knowledge = dict(upload.knowledge)
    for name, tensor in knowledge.items():
        if name.split("/")[0] == flag.what and tensor.is_floating_point() and tensor.dim():
            size = whole if "/" in name else torch.linalg.vector_norm(tensor.double(), dim=-1, keepdim=True)
            factor = (flag.limit / torch.as_tensor(size).clamp_min(1e-300)).clamp_max(1.0)
            knowledge[name] = (tensor.double() * factor).to(tensor.dtype)
    return replace(upload, knowledge=knowledge)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _largest(points: Tensor) -> float:
    """The largest norm of a point [..., d]."""
    return float(torch.linalg.vector_norm(points, dim=-1, dtype=torch.float64).max())
