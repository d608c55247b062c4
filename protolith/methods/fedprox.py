"""FedProx: stay near the global model while training locally (Li et al., MLSys 2020)."""

from pydantic import Field
from torch import Tensor

from protolith.losses import proximal
from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method


class Params(base.Params):
    """Options of FedProx."""

    mu: float = Field(
        0.01,
        ge=0,
        description="weight of the proximal term; the papers give none, 1e-4 is what the public code of FPL amounts to",
    )


class Client(fedavg.Client):
    """Adds (μ/2)‖θ − θ^t‖² over all trainable parameters."""

    def start(self) -> None:
        """Remember where the round began."""
        super().start()
        self.anchors = [parameter.detach().clone() for parameter in self.model.parameters()]

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy and the proximal term."""
        return {**super().loss(batch, out), "prox": self.params.mu * proximal(self.model.parameters(), self.anchors)}


METHOD = Method(
    name="fedprox",
    title="FedProx",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
    idea="stay near the global model while training locally",
    objective="CE + (μ/2) ‖θ − θ^t‖²",
    server_step="as FedAvg",
    traffic="as FedAvg",
    notes="The public code of FPL multiplies a fixed 0.01/2 by μ = 0.01, so its FedProx is FedAvg to the tenth digit.",
    params=Params,
    client=Client,
    server=fedavg.Server,
)
