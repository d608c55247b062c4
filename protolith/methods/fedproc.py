"""FedProc: from prototype contrast to classification in the course of training (Mu et al., FGCS 2023)."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from torch import Tensor

from protolith.losses import contrast
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method
from protolith.prototypes import GLOBAL, PrototypeSet, average
from protolith.records import Upload


class Params(with_prototypes.Params):
    """Options of FedProc."""

    tau: float = Field(1.0, gt=0, description="temperature of the contrast; FedProc has none, which is 1")
    schedule: Literal["last", "after"] = Field(
        "last", description="weight of CE: t / (T − 1), 1 in the last round (public code of FPL), or t / T (FedProc)"
    )
    centres: Literal["clients", "samples"] = Field(
        "clients", description="global centres: every client counts alike (public code of FPL), or every sample"
    )


class Client(with_prototypes.Client):
    """α_t · CE + (1 − α_t) · contrast with the class centres, α_t rising from 0 to 1."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """CE alone as long as there are no centres: a weight of 0 would waste the first round."""
        terms = super().loss(batch, out)
        if (centres := PrototypeSet.from_record(self.knowledge, GLOBAL)) is None:
            return terms
        share = self.share()
        apart = contrast(out.features, batch.labels, centres.vectors, centres.labels, self.params.tau)
        return {"ce": share * terms["ce"], "gpc": (1.0 - share) * apart}

    def share(self) -> float:
        """α_t, the weight of CE in this round."""
        last = self.context.rounds - (1 if self.params.schedule == "last" else 0)
        return min(1.0, self.context.round / max(1, last))


class Server(with_prototypes.Server):
    """Averages the class centres."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then prototypes; a class that nobody sent keeps its centre."""
        light = super().aggregate(uploads)
        self.take_global(*average(*self.received(light), weighted=self.params.centres == "samples"))
        return light


METHOD = Method(
    name="fedproc",
    title="FedProc",
    paper="Mu et al., FedProc: Prototypical Contrastive Federated Learning on Non-IID Data, FGCS 2023",
    idea="begin with the contrast to the global class centres and move to classification",
    objective="α_t · CE − (1 − α_t) · log e^{cos(z,c^y)} / Σ_k e^{cos(z,c^k)}; α_t = t / (T − 1)",
    server_step="θ as FedAvg; c^k = mean over the clients that have class k of p_m^k",
    traffic="down: weights, K × d prototypes; up: weights, K × d prototypes, K counts",
    notes="Without FedProc's projection head, as in the public code of FPL; with τ = 1 the contrast is very flat.",
    params=Params,
    client=Client,
    server=Server,
)
