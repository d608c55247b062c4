"""FedAvg: average the clients' models, weighted by their numbers of images (McMahan et al., AISTATS 2017).

Its client and server are also what every other method starts from.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protolith.methods.averaging import is_buffer as is_buffer
from protolith.methods.base import Batch, Context, Output, Roster, Spec, Terms, batches
from protolith.methods.base import Params as Params
from protolith.methods.registry import Method
from protolith.methods.sgd import SGD
from protolith.methods.shown import Shown
from protolith.models.saved import load_weights
from protolith.models.tuned import Above
from protolith.records import Broadcast, Record, Upload, clone, under_prefix, with_prefix


class Client:
    """The client half: what a client minimises, sends and remembers."""

    # Whether its losses act on features, so that something below the head must be trained.
    shapes_features: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.params: Any = context.params
        self.training = context.training
        self.model: Any = context.model
        self.data = context.data
        self.weights = context.weights
        self.knowledge = context.knowledge
        self.memory = context.memory
        self.rng = context.rng
        self.device = context.device
        self.context = context
        self.terms = Terms()
        self.rate = context.training.rate(context.round, context.rounds)
        self.class_weights = class_weights(context) if context.training.class_weights else None

    @staticmethod
    def check(model: nn.Module) -> None:
        """Refuse a network that this method cannot train, before anything is begun (none here)."""

    def update(self) -> tuple[Upload, Record]:
        """Do the work of one round: the upload and the new memory."""
        self.start()
        self.train()
        return self.upload(), self.remember()

    def keeps(self, name: str) -> bool:
        """Tell whether this client goes on with its own tensor of that name instead of the server's."""
        return self.context.buffers == "local" and is_buffer(name)

    def sends(self, name: str) -> bool:
        """Tell whether the tensor of that name is uploaded."""
        return True

    def start(self) -> None:
        """Put the broadcast weights into the model, and the client's own where it keeps them."""
        own = under_prefix("own", self.memory)
        load_weights(self.model, {**self.weights, **own})

    def train(self) -> None:
        """Minimise the sum of the loss terms for the local epochs."""
        self.model.train()
        self.fit(self.model.parameters(), self.training.epochs)

    def fit(self, parameters: Iterable[nn.Parameter], epochs: int) -> None:
        """Run SGD on these parameters, with a fresh optimiser."""
        optimizer = self.optimizer(list(parameters))
        for epoch in range(epochs):
            for batch in batches(self.data, self.training, self.rng, self.model, epoch, self.restyle):
                out = self.forward(batch)
                terms = self.loss(batch, out)
                optimizer.zero_grad()
                torch.autograd.backward(torch.stack(list(terms.values())).sum())
                self.adjust_gradients()
                optimizer.step()
                self.terms.add(terms)
                self.observe(batch, out)

    def restyle(self, images: Tensor) -> Tensor:
        """Change stored images before they are augmented, as the layers want it."""
        return self.context.layers.images(images, self.context)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the local optimiser; what a pretrained backbone holds learns more slowly."""
        t = self.training
        held = {id(parameter) for parameter in backbone_of(self.model)}
        above = [parameter for parameter in parameters if id(parameter) not in held]
        below = [parameter for parameter in parameters if id(parameter) in held]
        groups: list[dict[str, Any]] = [{"params": above}, {"params": below, "lr": t.below * self.rate}]
        used = [group for group in groups if group["params"]]
        return SGD(used, lr=self.rate, momentum=t.momentum, weight_decay=t.weight_decay, fused=True)

    def forward(self, batch: Batch) -> Output:
        """Pass a batch through the network."""
        features = self.model.features(batch.images)
        return Output(features, self.model.head(features))

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Name the terms whose sum is minimised."""
        return {"ce": F.cross_entropy(out.logits, batch.labels, weight=self.class_weights)}

    def adjust_gradients(self) -> None:
        """Change the gradients before the step (nothing here)."""

    def observe(self, batch: Batch, out: Output) -> None:
        """Look at what the network made of a batch, after the step (nothing here)."""

    def upload(self) -> Upload:
        """Gather what goes to the server."""
        weights = {name: tensor for name, tensor in self.model.state_dict().items() if self.sends(name)}
        return Upload(self.context.client, len(self.data), self.context.copy(weights), metrics=self.terms.means())

    def remember(self) -> Record:
        """Gather what this client needs in its next round."""
        return with_prefix("own", clone({name: t for name, t in self.model.state_dict().items() if self.keeps(name)}))


class Server:
    """The server half: what it sends, and what it makes of the uploads.

    Everything that lasts is in three records: `weights` and `knowledge` (which go to the clients) and `extra`
    (which does not). They are replaced, never changed in place, so that a checkpoint is always of one round.
    """

    # Whose accuracy the tables give: the global model's, or the clients' own.
    evaluates: ClassVar[Literal["global", "clients"]] = "global"
    # By what models count in their mean: by `weight`, by weights that the server learns, or there is no mean.
    counts_by: ClassVar[Literal["weight", "learned", "nothing"]] = "weight"

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        self.params = params
        self.weights = weights
        self.knowledge: Record = {}
        self.extra: Record = {}
        self.roster = roster
        self.pooling = roster.pooling
        self.made = Shown()  # of the last round; it decides nothing, and no checkpoint has it

    def begin(self, round_: int) -> None:
        """Hear that a round begins; the first is 0 (nothing here)."""

    def broadcast(self, client: int) -> Broadcast:
        """Gather what goes to a client."""
        return Broadcast(self.weights, self.knowledge)

    def learns(self, name: str) -> bool:
        """Tell whether the weight of that name is a parameter, which is trained, and no buffer."""
        return not is_buffer(name) and name not in self.roster.buffers

    def origin(self) -> Record:
        """The weights that clients set out from: what their moves are measured from."""
        return self.weights

    def expects(self, name: str) -> bool:
        """Tell whether an upload has the weight of that name."""
        return True

    def schema(self) -> dict[str, Spec]:
        """Say what the knowledge in an upload must look like."""
        return {}

    def problem(self, upload: Upload) -> str | None:
        """Say what in an upload does not fit together, once its parts fit the schema; or nothing."""
        return None

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average the weights as they come; give the uploads back without them."""
        mean = self.pooling.averaging(self.origin())
        light = []
        for upload in uploads:
            mean.add(upload.weights, self.weight(upload))
            light.append(upload.without_weights())
            del upload  # before the next one comes, so that memory holds one
        self.weights = {**self.weights, **mean.mean()}
        return light

    def weight(self, upload: Upload) -> float:
        """The weight of a client's model in the mean: its number of images, unless a layer says otherwise."""
        return float(upload.count) if upload.counts_as is None else upload.counts_as

    def shown(self) -> Shown:
        """What became of the last round's uploads besides the model, for the report (here nothing)."""
        return self.made

    def state(self) -> Record:
        """Everything that lasts, as one record."""
        parts = {"weights": self.weights, "knowledge": self.knowledge, "extra": self.extra}
        return {name: tensor for part, record in parts.items() for name, tensor in with_prefix(part, record).items()}

    def load_state(self, state: Record) -> None:
        """Go on from a state."""
        self.weights = under_prefix("weights", state)
        self.knowledge = under_prefix("knowledge", state)
        self.extra = under_prefix("extra", state)


def backbone_of(model: nn.Module) -> Iterable[nn.Parameter]:
    """The parameters of a pretrained backbone; none in a network of one piece."""
    backbone = model.backbone if isinstance(model, Above) else None
    return backbone.parameters() if isinstance(backbone, nn.Module) else ()


def class_weights(context: Context) -> Tensor:
    """Weights [K] with which all classes that a client holds count alike; their mean over its images is 1."""
    counts = torch.bincount(context.data.labels, minlength=context.classes).float()
    weights = torch.where(counts > 0, len(context.data) / (counts.clamp_min(1) * (counts > 0).sum()), 0.0)
    return weights.to(context.device)


def stacked(uploads: Iterable[Upload], name: str) -> Tensor:
    """Put one piece of knowledge of all uploads into one tensor, a row each."""
    return torch.stack([upload.knowledge[name] for upload in uploads])


METHOD = Method(
    name="fedavg",
    title="FedAvg",
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017",
    idea="average the clients' models, weighted by their numbers of images",
    objective="CE",
    server_step="θ ← Σ_m (n_m / n) θ_m, BatchNorm's buffers included",
    traffic="down: weights; up: weights",
    params=Params,
    client=Client,
    server=Server,
)
