"""A method of your own in one file: `python my_method.py`, or `protolith run --plugin my_method.py --method modest`."""

import math
import sys
from collections.abc import Iterable

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

import protolith as pl
from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Output
from protolith.records import Upload


class Params(base.Params):
    """Options of Modest; `--set weight=0.2` changes one."""

    weight: float = Field(0.1, ge=0, description="price of being sure")
    step: float = Field(0.9, gt=0, le=1, description="how far the server goes towards the clients' mean")


class Client(fedavg.Client):
    """Trains like FedAvg's client, and pays for predictions that are very sure."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy, and the divergence of the prediction from an even guess."""
        logs = F.log_softmax(out.logits, dim=1)
        entropy = -(logs.exp() * logs).sum(1).mean()
        sure = math.log(logs.shape[1]) - entropy
        return {**super().loss(batch, out), "sure": self.params.weight * sure}


class Server(fedavg.Server):
    """Averages like FedAvg's server, and goes only part of the way."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Replace the weights by a point between the old ones and the mean."""
        old = self.weights
        light = super().aggregate(uploads)
        self.weights = {name: self.between(old[name], mean) for name, mean in self.weights.items()}
        return light

    def between(self, old: Tensor, mean: Tensor) -> Tensor:
        """Go from the old value towards the mean; batch normalisation's counters are whole numbers and just follow."""
        return old.lerp(mean, self.params.step) if old.is_floating_point() else mean


METHOD = pl.Method(
    name="modest",
    title="Modest",
    paper="none",
    idea="no prediction is too sure, and the server goes part of the way",
    objective="CE + w · (log K − H(p))",
    server_step="θ ← θ + s · (Σ_m (n_m / n) θ_m − θ)",
    traffic="as FedAvg",
    params=Params,
    client=Client,
    server=Server,
)

if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    run = pl.fit(
        "modest",
        "mini",
        plugins=[__file__],
        rounds=rounds,
        model={"width": 8},
        training={"lr": 0.02, "batch": 16, "epochs": 2},
    )
    print(run.table())
    print("loss terms of the last round:", run.rounds[-1].loss)
