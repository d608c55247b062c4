"""FedPAC: aligned features and, for each client, its own mixture of all heads (Xu et al., ICLR 2023)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from protolith.devices import exact
from protolith.losses import align
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Context, Output, Roster, Spec
from protolith.methods.copa import head_of
from protolith.methods.fedavg import stacked
from protolith.methods.registry import Method
from protolith.models.saved import load_weights
from protolith.prototypes import average
from protolith.records import Broadcast, Record, Upload, clone, under_prefix, with_prefix

NEGLIGIBLE = 1e-3  # smaller weights of a head are dropped
RIDGE = 1e-9  # decides between heads that are equally good: all alike


class Params(with_prototypes.Params):
    """Options of FedPAC."""

    proto_pass: Literal["last_epoch_train", "eval_pass"] = Field(
        "eval_pass", description="local prototypes from a pass after training, as in the authors' code"
    )
    lam: float = Field(1.0, ge=0, description="weight of the alignment λ; the value of the authors' code")
    head_epochs: int = Field(1, ge=1, description="epochs in which only the head is trained; the authors' value")
    head_lr: float = Field(
        0.0, ge=0, description="learning rate of these; 0: that of the encoder, so that methods compare (authors: 0.1)"
    )


class Client(with_prototypes.Client):
    """Trains the head alone with CE, then the encoder alone with CE + λ · mean (z − G^y)²."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.head_only = False
        self.squares = 0.0

    def keeps(self, name: str) -> bool:
        """Keep the head as training left it: it is this client's model."""
        return name.startswith("head.") or super().keeps(name)

    def start(self) -> None:
        """Take the encoder and this client's mixture of heads; describe its features before they change."""
        super().start()
        load_weights(self.model.head, under_prefix("head", self.knowledge))
        self.pass_over_data()
        assert self.means is not None
        before, self.means = self.means, None
        shares = before.counts.double() / len(self.data)
        self.own_means = before.means().to(self.device)
        self.h = shares[:, None] * before.means(torch.float64)  # h^k = π^k μ^k
        self.variance = max(0.0, self.squares / len(self.data) - float(self.h.square().sum())) / len(self.data)

    def _collect(self, features: Tensor, labels: Tensor) -> None:
        super()._collect(features, labels)
        self.squares += float(exact(features).square().sum())

    def train(self) -> None:
        """First the head, on an encoder that stands still with its statistics; then everything but the head."""
        head = list(self.model.head.parameters())
        encoder = [p for name, p in self.model.named_parameters() if not name.startswith("head.")]
        self.model.eval()
        self.model.head.train()
        self.head_only = True
        with frozen(encoder):
            self.fit(head, self.params.head_epochs)
        self.model.train()
        self.head_only = False
        with frozen(head):
            self.fit(encoder, self.training.epochs)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimiser of the phase."""
        optimizer = super().optimizer(parameters)
        if self.head_only and self.params.head_lr:
            optimizer.param_groups[0]["lr"] = self.params.head_lr
        return optimizer

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy and, for the encoder, the alignment once there are global prototypes."""
        terms = super().loss(batch, out)
        if not self.head_only and "global" in self.knowledge:
            # A class that no other client has told of is aligned with this client's own prototype.
            known = self.knowledge["present"][:, None]
            targets = torch.where(known, self.knowledge["global"], self.own_means)
            terms["align"] = self.params.lam * align(out.features, batch.labels, targets, torch.ones_like(known[:, 0]))
        return terms

    def observe(self, batch: Batch, out: Output) -> None:
        """Collect features of the encoder's phase only."""
        if not self.head_only:
            super().observe(batch, out)

    def upload(self) -> Upload:
        """Weights, prototypes, h and V."""
        return super().upload().with_knowledge(h=self.h.float(), variance=torch.tensor(self.variance))


class Server(with_prototypes.Server):
    """Averages encoders and prototypes by images, and mixes the heads anew for every client."""

    evaluates: ClassVar[Literal["global", "clients"]] = "clients"

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        clients = len(roster.counts)
        heads = {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in head_of(weights).items()}
        self.extra = with_prefix("heads", heads)

    def broadcast(self, client: int) -> Broadcast:
        """Send the weights, the global prototypes and the client's own head."""
        head = {name: heads[client].clone() for name, heads in under_prefix("heads", self.extra).items()}
        return Broadcast(self.weights, {**self.knowledge, **with_prefix("head", head)})

    def schema(self) -> dict[str, Spec]:
        """Prototypes, and what the mixture of heads is computed from."""
        classes, features = self.roster.classes, self.roster.features
        return {**super().schema(), "h": Spec((classes, features)), "variance": Spec((), least=0)}

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models and prototypes; the active clients get a new mixture of the active clients' heads."""
        sent: list[Record] = []

        def collect() -> Iterator[Upload]:
            for upload in uploads:
                sent.append(clone(head_of(upload.weights)))
                yield upload

        light = super().aggregate(collect())
        self.take_global(*average(*self.received(light), weighted=True))
        h, variance = (self.pooling.moderate(stacked(light, name)[:, None]) for name in ("h", "variance"))
        alphas = head_weights(h[:, 0], variance[:, 0])
        clients = torch.tensor([upload.client for upload in light])
        heads = {}
        for name, old in under_prefix("heads", self.extra).items():
            all_sent = self.pooling.moderate(torch.stack([head[name] for head in sent]))
            mixed = torch.tensordot(alphas, all_sent.double(), dims=1).to(old.dtype)
            heads[name] = old.index_copy(0, clients, mixed)
        self.extra = with_prefix("heads", heads)
        return light


@contextmanager
def frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Keep these parameters out of the backward pass."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def head_weights(h: Tensor, variance: Tensor) -> Tensor:
    """Weights [M, M] of everybody's head for each client, from h [M, K, d] and V [M].

    Row i minimises α^T P_i α over the simplex, P_i = diag(V) + D_i, D_i[a, b] = Σ_k (h_i^k − h_a^k)·(h_i^k − h_b^k).
    """
    flat = h.double().flatten(1)
    rows = []
    for i in range(len(flat)):
        distance = flat[i] - flat
        found = simplex_minimum(torch.diag(variance.double()) + distance @ distance.T)
        rows.append(torch.eye(len(flat), dtype=torch.float64)[i] if found is None else found)
    weights = torch.stack(rows)
    weights = torch.where(weights < NEGLIGIBLE, 0.0, weights)
    return weights / weights.sum(dim=1, keepdim=True)


def simplex_minimum(matrix: Tensor) -> Tensor | None:
    """Minimise α^T P α over α ≥ 0, Σ α = 1 for a positive semi-definite P; None when no minimum is found.

    With P = R^T R, minimising ‖R α‖² + (Σ α − 1)² over α ≥ 0 gives the same direction: for α = s u with u on the
    simplex the best s leaves q / (1 + q), q = u^T P u, which grows with q. That is a least-squares problem with
    non-negative unknowns, for which scipy has an exact active-set solver.
    """
    from scipy.optimize import nnls  # 40 MB that only FedPAC's server needs

    size = len(matrix)
    scale = float(matrix.diagonal().mean())
    ridge = RIDGE * torch.eye(size, dtype=matrix.dtype)
    values, vectors = torch.linalg.eigh((matrix / scale if scale > 0 else matrix) + ridge)
    root = values.clamp_min(0.0).sqrt()[:, None] * vectors.T
    system = torch.cat([root, torch.ones(1, size, dtype=matrix.dtype)])
    target = np.zeros(size + 1)
    target[-1] = 1.0
    try:
        solution = torch.from_numpy(nnls(system.numpy(), target)[0])
    except RuntimeError:
        return None
    return solution / solution.sum()


METHOD = Method(
    name="fedpac",
    title="FedPAC",
    paper="Xu et al., Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023",
    idea="align features with global prototypes, and give each client the mixture of all heads that suits its data",
    objective="head: CE, one epoch; then encoder: CE + λ · mean (z − G^y)²",
    server_step="f as FedAvg; G^k = Σ n_m^k p_m^k / Σ n_m^k; head of client i = Σ_j α_ij g_j, α_i = argmin over the "
    "simplex of α^T (diag(V) + D_i) α",
    traffic="down: weights, K × d prototypes, one head; up: weights, 2 × K × d, K counts, one number",
    passes="one forward and one backward pass per batch, for one epoch more (its backward pass ends at the head); a "
    "forward pass over all images before and one after training",
    memory="the client's head, for its exported model",
    accuracy="of the clients' own models, each on its own domain",
    notes="The head is trained with the encoder in evaluation mode, the encoder in training mode; the authors' code "
    "stays in evaluation mode.",
    params=Params,
    client=Client,
    server=Server,
)
