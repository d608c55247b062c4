"""FedDyn: dynamic regularisation that makes the clients' minima meet in the joint one (Acar et al., ICLR 2021)."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from protolith.losses import inner_product, proximal
from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Output, Roster
from protolith.methods.registry import Method
from protolith.records import Broadcast, Record, Upload, clone, under_prefix, with_prefix


class Params(base.Params):
    """Options of FedDyn."""

    alpha: float = Field(0.01, gt=0, description="weight of the regulariser; the value of the authors' code")
    adaptive: bool = Field(
        True,
        description="α_m = α n / (M n_m), as the authors' code: the fixed point is then the minimum of the loss over "
        "all images, as for the other methods; off: the paper's one α, and the mean of the clients' losses",
    )
    clip: float = Field(
        0.0, ge=0, description="largest norm of a gradient; 0: none, as for the other methods (the authors use 10)"
    )


class Client(fedavg.Client):
    """Minimises CE + α_m (⟨θ, h_m⟩ + ½ ‖θ − θ^t‖²), with h_m the sum of all its moves θ_m − θ^t so far."""

    def start(self) -> None:
        """Note where the round begins, and fetch h_m (zero at first)."""
        super().start()
        self.parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.anchors = {name: p.detach().clone() for name, p in self.parameters.items()}
        remembered = under_prefix("h", self.memory) or {n: torch.zeros_like(a) for n, a in self.anchors.items()}
        self.h = {name: remembered[name].to(self.device) for name in self.parameters}
        self.alpha = self.knowledge["alpha"]

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy and the dynamic regulariser, on the parameters that are trained."""
        trained = self.parameters.values()
        pull = inner_product(trained, self.h.values()) + proximal(trained, self.anchors.values())
        return {**super().loss(batch, out), "dyn": self.alpha * pull}

    def adjust_gradients(self) -> None:
        """Bound the gradient, if asked to."""
        if self.params.clip:
            nn.utils.clip_grad_norm_(self.parameters.values(), self.params.clip)

    def remember(self) -> Record:
        """Keep h_m + (θ_m − θ^t)."""
        moved = {name: self.h[name] + p.detach() - self.anchors[name] for name, p in self.parameters.items()}
        return {**super().remember(), **with_prefix("h", clone(moved))}


class Server(fedavg.Server):
    """Evaluates θ̄, the mean of the active clients' models, and broadcasts θ̄ + h, with h the mean of all h_m.

    `weights` is θ̄; h is in `extra`. What is broadcast follows from the two and is made once a round.
    """

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items() if self.learns(name)}
        self.extra = with_prefix("h", zeros)
        self.cloud = self._cloud()

    def broadcast(self, client: int) -> Broadcast:
        """Send θ̄ + h and the client's own α_m."""
        m, n = len(self.roster.counts), sum(self.roster.counts)
        share = m * self.roster.counts[client] / n if self.params.adaptive else 1.0
        return Broadcast(self.cloud, {**self.knowledge, "alpha": torch.tensor(self.params.alpha / share)})

    def origin(self) -> Record:
        """Clients set out from θ̄ + h."""
        return self.cloud

    def weight(self, upload: Upload) -> float:
        """Every client's parameters count alike."""
        return 1.0

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """θ̄ is the uniform mean; buffers are weighted by images; h grows by the moves of the active clients."""
        parameters, buffers = self.pooling.averaging(self.origin()), self.pooling.averaging(self.origin())
        light = []
        for upload in uploads:
            parameters.add(self._parameters(upload.weights), self.weight(upload))
            buffers.add({n: t for n, t in upload.weights.items() if not self.learns(n)}, float(upload.count))
            light.append(upload.without_weights())
        mean = parameters.mean()
        share = len(light) / len(self.roster.counts)
        h = under_prefix("h", self.extra)
        self.extra = with_prefix("h", {name: h[name] + share * (t - self.cloud[name]) for name, t in mean.items()})
        self.weights = {**self.weights, **mean, **buffers.mean()}
        self.cloud = self._cloud()
        return light

    def load_state(self, state: Record) -> None:
        """Go on from a state."""
        super().load_state(state)
        self.cloud = self._cloud()

    def _cloud(self) -> Record:
        moved = {name: t + self.extra[f"h/{name}"] for name, t in self._parameters(self.weights).items()}
        return {**self.weights, **moved}

    def _parameters(self, weights: Mapping[str, Tensor]) -> Record:
        return {name: tensor for name, tensor in weights.items() if self.learns(name)}


METHOD = Method(
    name="feddyn",
    title="FedDyn",
    paper="Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021",
    idea="each client's loss is tilted by its own past, so that all local minima meet in the joint one",
    objective="CE + α_m (⟨θ, h_m⟩ + ½ ‖θ − θ^t‖²); afterwards h_m ← h_m + (θ_m − θ^t)",
    server_step="θ̄ = mean of the active θ_m (uniform; BatchNorm's buffers by n_m); h = (1/M) Σ_all h_m; "
    "broadcast θ^{t+1} = θ̄ + h",
    traffic="down: weights, one number; up: weights",
    memory="h_m, as large as the parameters",
    accuracy="of θ̄, the mean of the active clients' models; what is broadcast is θ̄ + h",
    notes="In the public code of FPL the regulariser is computed on the global network, has no gradient, and FedDyn is "
    "FedAvg. This is the real one.",
    params=Params,
    client=Client,
    server=Server,
)
