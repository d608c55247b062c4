"""FedProto with averaged models: pull features to the global class prototypes (Tan et al., AAAI 2022).

This is the baseline of FPL's, I2PFL's and FedAPC's tables; the original, which exchanges prototypes only, is
`fedproto-original`.
"""

from collections.abc import Iterable

from pydantic import Field
from torch import Tensor

from protolith.losses import align
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method
from protolith.prototypes import average
from protolith.records import Upload


class Params(with_prototypes.Params):
    """Options of FedProto."""

    mu: float = Field(
        1.0, ge=0, description="weight of the alignment; FPL's Table 3 row G, weight 1, is its FedProto row"
    )


class Client(with_prototypes.Client):
    """Adds μ · mean squared distance to the class's global prototype."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy, and the alignment once there are global prototypes."""
        terms = super().loss(batch, out)
        if "global" in self.knowledge:
            distance = align(out.features, batch.labels, self.knowledge["global"], self.knowledge["present"])
            terms["proto"] = self.params.mu * distance
        return terms


class Server(with_prototypes.Server):
    """Averages the prototypes of each class over the clients that have it, every client alike."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then prototypes; a class that nobody sent keeps its prototype."""
        light = super().aggregate(uploads)
        self.take_global(*average(*self.received(light)))
        return light


METHOD = Method(
    name="fedproto",
    title="FedProto",
    paper="Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022",
    idea="pull features to the mean prototype of their class over all clients; models are averaged too",
    objective="CE + μ · mean (z − G^y)²",
    server_step="θ as FedAvg; G^k = mean over the clients that have class k of p_m^k",
    traffic="down: weights, K × d prototypes; up: weights, K × d prototypes, K counts",
    notes="One forward pass serves both terms; the public code makes two, which moves BatchNorm's statistics twice.",
    params=Params,
    client=Client,
    server=Server,
)
