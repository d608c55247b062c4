"""FedALA: each client mixes the global model into its own, weight by weight (Zhang et al., AAAI 2023)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from protolith.data.domain import Split
from protolith.methods import base, fedavg
from protolith.methods.base import batches
from protolith.methods.registry import Method
from protolith.methods.with_prototypes import same_statistics
from protolith.models.saved import load_weights
from protolith.records import Record, clone, under_prefix, with_prefix

WINDOW, STEADY = 10, 0.1  # the mix is learned when the last ten epochs' losses scatter by less than this


class Params(base.Params):
    """Options of FedALA; the defaults are those of the authors' code."""

    eta: float = Field(1.0, gt=0, description="step of the mixing weights; the authors' value")
    part: float = Field(0.8, gt=0, le=1, description="part of the client's images that the mix is learned on")
    layers: int = Field(
        2, ge=0, description="tensors, counted from the end, that are mixed; 2 is the classifier, 0 is all of them"
    )
    first_epochs: int = Field(
        20, ge=1, description="most epochs for learning a client's first mix (the authors set no limit); later one"
    )


class Client(fedavg.Client):
    """Starts from θ_m + (θ^t − θ_m) ⊙ W in the top layers and from θ^t below, then minimises CE."""

    def keeps(self, name: str) -> bool:
        """Remember the whole model."""
        return True

    def start(self) -> None:
        """Take the global model, and mix it with this client's own once there is one."""
        own = under_prefix("own", self.memory)
        kept = {name: tensor for name, tensor in own.items() if super(Client, self).keeps(name)}
        load_weights(self.model, {**self.weights, **kept})
        self.mix = under_prefix("mix", self.memory)
        if own:
            self._adapt(own)

    def _adapt(self, own: Record) -> None:
        """Learn W on a random slice of the data: W ← clip(W − η ∇L ⊙ (θ^t − θ_m))."""
        top = dict(list(self.model.named_parameters())[-self.params.layers :])
        old = {name: own[name].to(self.device) for name in top}
        gap = {name: self.weights[name].to(self.device) - old[name] for name in top}
        if not any(bool(difference.any()) for difference in gap.values()):
            return
        epochs = 1 if self.mix else self.params.first_epochs
        mix = {name: self.mix[name].to(self.device) if self.mix else torch.ones_like(old[name]) for name in top}
        length = max(1, int(self.params.part * len(self.data)))
        first = int(torch.randint(len(self.data) - length + 1, (), generator=self.rng))
        part = Split(self.data.images[first : first + length], self.data.labels[first : first + length])
        losses: list[float] = []
        self.model.train()
        for epoch in range(epochs):
            seen = []
            for batch in batches(part, self.training, self.rng, self.model, epoch):
                self._place(old, gap, mix)
                with same_statistics(self.model):
                    loss = self.loss(batch, self.forward(batch))["ce"]
                gradients = torch.autograd.grad(loss, list(top.values()))
                for name, gradient in zip(top, gradients, strict=True):
                    mix[name] = (mix[name] - self.params.eta * gradient * gap[name]).clamp(0.0, 1.0)
                seen.append(loss.detach())
            losses.append(float(torch.stack(seen).mean()))
            if len(losses) > WINDOW and float(torch.tensor(losses[-WINDOW:]).std(correction=0)) < STEADY:
                break
        self._place(old, gap, mix)
        self.mix = clone(mix)

    def _place(self, old: Record, gap: Record, mix: Record) -> None:
        mixed = {name: old[name] + gap[name] * mix[name] for name in old}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in mixed:
                    parameter.copy_(mixed[name])

    def remember(self) -> Record:
        """Keep the model as training left it, and W."""
        return {**super().remember(), **with_prefix("mix", self.mix)}


class Server(fedavg.Server):
    """Averages the local models as FedAvg does."""

    evaluates: ClassVar[Literal["global", "clients"]] = "clients"


METHOD = Method(
    name="fedala",
    title="FedALA",
    paper="Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023",
    idea="each client learns how much of the global model to take into its own, weight by weight",
    objective="CE, from θ^t below and θ_m + (θ^t − θ_m) ⊙ W in the top layers; W ∈ [0, 1] by "
    "W ← clip(W − η ∇L ⊙ (θ^t − θ_m))",
    server_step="as FedAvg",
    traffic="as FedAvg",
    passes="one forward and one backward pass per batch; before training, a forward and a short backward pass over "
    "80 % of the images (up to 20 times in a client's second round)",
    memory="the client's model and W",
    accuracy="of the clients' own models, each on its own domain",
    notes="BatchNorm's statistics follow the setting `buffers`; in the authors' code they stay local by accident.",
    params=Params,
    client=Client,
    server=Server,
)
