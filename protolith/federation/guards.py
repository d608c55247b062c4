"""What the server accepts: every upload is checked before anything is computed with it."""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from protolith.federation.layers.base import Layers
from protolith.methods import base
from protolith.methods.base import Spec
from protolith.methods.fedavg import Server
from protolith.records import Record, Upload, side_by_side

METRICS = 64  # most numbers that an upload may tell (SECURITY.md and docs/robust.md name both)
NAME = 64  # longest name of such a number
LARGEST = 1e30  # largest of them, so that means over clients stay finite
SHOWN = 40  # characters of a name that somebody else chose


class Guard:
    """The schema of the uploads of a round."""

    def __init__(self, server: Server, awaited: Collection[int] | None = None, layers: Layers | None = None) -> None:
        self.server = server
        self.weights = {
            name: Spec(tuple(tensor.shape), tensor.dtype, least=0 if _never_negative(name) else None)
            for name, tensor in server.weights.items()
            if server.expects(name)
        }
        self.knowledge = {**server.schema(), **(layers.schema() if layers else {})}
        self.counts = server.roster.counts
        self.awaited = None if awaited is None else set(awaited)

    def problem(self, upload: Upload) -> str | None:
        """Say in one sentence why an upload cannot be used, or nothing."""
        return (
            self._sender(upload)
            or self._compare("weight", self.weights, upload.weights)
            or self._compare("knowledge", self.knowledge, upload.knowledge)
            or self._metrics(upload.metrics)
            or self.server.problem(upload)
        )

    def _sender(self, upload: Upload) -> str | None:
        client, count = upload.client, upload.count
        if type(client) is not int or not 0 <= client < len(self.counts):
            return f"there is no client {_short(client)}"
        if self.awaited is not None:
            if client not in self.awaited:
                return "nothing is expected of this client, or it has sent an upload already"
            self.awaited.remove(client)
        if type(count) is not int or not 0 < count <= self.counts[client]:
            return f"claims {_short(count)} images, but the client has {self.counts[client]}"
        return None

    @staticmethod
    def _compare(what: str, specs: dict[str, Spec], record: Record) -> str | None:
        if missing := specs.keys() - record.keys():
            return f"{what} '{min(missing)}' is missing"
        if extra := record.keys() - specs.keys():
            return f"{what} '{_short(min(extra, key=str))}' is not part of this method"
        lengths: dict[str, int] = {}
        within = within_limits(record)  # all at once; only if that cannot be said, each tensor is asked
        for name, spec in specs.items():
            if fault := spec.problem(record[name], lengths, within):
                return f"{what} '{name}' {fault}"
        return None

    def _metrics(self, metrics: dict[str, float]) -> str | None:
        if len(metrics) > METRICS:
            return f"has {len(metrics)} metrics, more than {METRICS}"
        for name, value in metrics.items():
            if not isinstance(name, str) or not 0 < len(name) <= NAME:
                return f"metric '{_short(name)}' has no name of 1 to {NAME} characters"
            if type(value) not in (int, float) or value != value or abs(value) == math.inf:
                return f"metric '{_short(name)}' is not a finite number"
            if abs(value) > LARGEST:
                return f"metric '{_short(name)}' is {_short(value)}, which cannot be"
        return None


def within_limits(record: Record) -> bool:
    """Tell, at one look, that all floats of a record are allowed; False where that cannot be told at one look."""
    if not all(isinstance(tensor, Tensor) and tensor.layout is torch.strided for tensor in record.values()):
        return False
    floats = [tensor for tensor in record.values() if tensor.is_floating_point()]
    if (joined := side_by_side(floats)) is None:
        return False
    lowest, highest = (float(number) for number in torch.aminmax(joined))
    return lowest >= -base.LARGEST and highest <= base.LARGEST


def _never_negative(name: str) -> bool:
    """BatchNorm's variances and counters."""
    return name.endswith(("running_var", "num_batches_tracked"))


def _short(text: object) -> str:
    """What somebody else chose, at a length that fits a sentence and without line breaks."""
    if isinstance(text, int) and abs(text) > 10**SHOWN:  # Python refuses to write very long numbers out
        return "a number of many digits"
    plain = "".join(sign if sign.isprintable() else "?" for sign in str(text)[: SHOWN + 1])
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"
