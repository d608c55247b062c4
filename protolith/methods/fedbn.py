"""FedBN: BatchNorm stays local, everything else is averaged (Li et al., ICLR 2021)."""

from typing import ClassVar, Literal

from torch.nn.modules.batchnorm import _BatchNorm

from protolith.methods import fedavg
from protolith.methods.base import Context, Params
from protolith.methods.registry import Method


class Client(fedavg.Client):
    """Goes on with its own scales, shifts and statistics of BatchNorm."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.local = {
            f"{layer}.{name}"
            for layer, module in context.model.named_modules()
            if isinstance(module, _BatchNorm)
            for name in module.state_dict()
        }

    def keeps(self, name: str) -> bool:
        """Keep what belongs to BatchNorm, whatever the setting `buffers` says."""
        return name in self.local or super().keeps(name)


class Server(fedavg.Server):
    """Averages BatchNorm too, for clients that join later; those that have trained do not use it."""

    evaluates: ClassVar[Literal["global", "clients"]] = "clients"


METHOD = Method(
    name="fedbn",
    title="FedBN",
    paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021",
    idea="each client has its own batch normalisation, because that is where its domain's look is",
    objective="CE",
    server_step="θ ← Σ_m (n_m / n) θ_m; clients go on with their own BatchNorm parameters and statistics",
    traffic="as FedAvg",
    memory="BatchNorm's parameters and statistics",
    accuracy="of the clients' own models, each on its own domain",
    notes="BatchNorm is uploaded although nobody needs it, so that the server has a complete averaged model.",
    params=Params,
    client=Client,
    server=Server,
)
