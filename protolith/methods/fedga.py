"""FedGA: give weight to the clients that lose by aggregation (generalization adjustment; Zhang et al., CVPR 2023)."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from protolith.data.domain import Split
from protolith.methods import base, fedavg
from protolith.methods.base import Roster, Spec
from protolith.methods.fedavg import stacked
from protolith.methods.registry import Method
from protolith.models.passes import BATCH, answers
from protolith.models.spec import see
from protolith.records import Record, Upload

LEAST = 1e-9  # a weight of zero must not leave a round without a model when nobody else takes part


class Params(base.Params):
    """Options of FedGA."""

    step: float = Field(0.2, gt=0, lt=1, description="first step of the weights, d_0; the value of the authors' code")
    metric: Literal["accuracy", "loss"] = Field(
        "accuracy", description="what aggregation may cost a client; the default of the authors' code"
    )
    holdout: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="part of a client's images that is kept for measuring, at least one; small, as data are",
    )
    centre: bool = Field(
        False, description="subtract the mean cost first, as the paper prints it; the authors' code does not"
    )


class Client(fedavg.Client):
    """Plain cross-entropy; measures on images of its own what the aggregation before this round cost it."""

    def start(self) -> None:
        """Set images aside (the same in every round), and measure the model that came."""
        super().start()
        chosen = set_aside(len(self.data), self.params.holdout)
        self.holdout = self.data
        if not chosen.all():  # a client with one image is measured on what it trains on
            self.holdout = Split(self.data.images[chosen], self.data.labels[chosen])
            self.data = Split(self.data.images[~chosen], self.data.labels[~chosen])
        self.cost = self.measure() - self.memory["before"] if "before" in self.memory else None

    def measure(self) -> Tensor:
        """The error rate or the loss of the model as it is, over the hold-out."""
        total = torch.zeros((), dtype=torch.float64)
        passes = answers(self.model, self.holdout.images, lambda images: self.model(see(self.model, images)))
        for said, labels in zip(passes, torch.split(self.holdout.labels, BATCH), strict=True):
            logits = said.cpu().double()
            wrong = logits.argmax(1) != labels
            total += F.cross_entropy(logits, labels, reduction="sum") if self._by_loss else wrong.sum()
        return torch.tensor(float(total) / len(self.holdout))

    @property
    def _by_loss(self) -> bool:
        return bool(self.params.metric == "loss")

    def upload(self) -> Upload:
        """Weights, and the cost if this client has one to compare with."""
        cost = torch.zeros(()) if self.cost is None else self.cost
        return super().upload().with_knowledge(cost=cost, measured=torch.tensor(self.cost is not None))

    def remember(self) -> Record:
        """Keep how good the local model is before the server averages it away."""
        return {**super().remember(), "before": self.measure()}


class Server(fedavg.Server):
    """Averages the models with weights a_m of its own, in `extra`, and moves them by the clients' costs."""

    counts_by: ClassVar[Literal["weight", "learned", "nothing"]] = "learned"

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        clients = len(roster.counts)
        self.extra = {"a": torch.full((clients,), 1.0 / clients, dtype=torch.float64)}
        self.round = 0

    def begin(self, round_: int) -> None:
        """Note the round, on which the step depends."""
        self.round = round_

    def schema(self) -> dict[str, Spec]:
        """One cost, and whether it was measured; error rates differ by 1 at most."""
        most = 1.0 if self.params.metric == "accuracy" else None
        return {"cost": Spec((), least=None if most is None else -most, most=most), "measured": Spec((), torch.bool)}

    def weight(self, upload: Upload) -> float:
        """The weight of a client's model in the mean."""
        return max(float(self.extra["a"][upload.client]), LEAST)

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average with the weights so far; then move them by what the aggregation before this one cost."""
        light = super().aggregate(uploads)
        measured = [upload for upload in light if bool(upload.knowledge["measured"])]
        if measured:
            clients = torch.tensor([upload.client for upload in measured])
            costs = self.pooling.moderate(stacked(measured, "cost")[:, None])[:, 0].double()
            step = self.params.step * (1 - (self.round - 1) / self.roster.rounds)  # d_t; round t was the one before
            self.extra = {"a": adjusted(self.extra["a"], clients, costs, step, self.params.centre)}
        return light


def set_aside(images: int, part: float) -> Tensor:
    """Which of so many images [n] are kept for measuring: that part of them, at least one, evenly spread."""
    count = max(1, round(part * images))
    chosen = torch.zeros(images, dtype=torch.bool)
    chosen[torch.arange(1, count + 1) * images // count - 1] = True
    return chosen


def adjusted(weights: Tensor, clients: Tensor, costs: Tensor, step: float, centre: bool = False) -> Tensor:
    """a_m + (c_m / max |c|) d_t / M for these clients, clipped to [0, 1] and scaled to sum to one over all."""
    costs = costs - costs.mean() if centre else costs
    largest = costs.abs().max()
    if largest == 0:
        return weights
    moved = weights.index_add(0, clients, costs / largest * step / len(weights)).clamp(0.0, 1.0)
    return moved / moved.sum()


METHOD = Method(
    name="fedga",
    title="FedGA",
    paper="Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023",
    idea="a client whose model got worse by aggregation gains weight in the next ones",
    objective="CE, on nine tenths of the client's images",
    server_step="θ ← Σ_m a_m θ_m; a_m ← a_m + (c_m / max_j |c_j|) d_t / M, clipped to [0, 1], sum 1; c_m = loss or "
    "error rate of θ minus that of θ_m on client m's hold-out; d_t falls from 0.2 to 0.2 / T",
    traffic="down: weights; up: weights, one number",
    passes="one forward and one backward pass per batch; two forward passes over the hold-out in a round",
    memory="one number",
    notes="A client compares the model that it receives with the local model it sent last, so that no model is sent "
    "twice; the weights act one round later than in the authors' code.",
    params=Params,
    client=Client,
    server=Server,
)
