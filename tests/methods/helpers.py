"""What tests of methods share: contexts, uploads, servers, and plain arithmetic on lists."""

import copy
import math

import torch
from torch import nn

from protolith.data.domain import Split
from protolith.federation.guards import Guard
from protolith.federation.layers import layers_of
from protolith.federation.layers.base import Layers
from protolith.federation.layers.styles import StylesLayer
from protolith.federation.setup import Setup
from protolith.methods.base import Batch, Context, Output, Roster, Training
from protolith.methods.registry import get_method
from protolith.models import build_model
from protolith.records import Upload, clone

CLASSES, DIM = 4, 6
TRAINING = Training(epochs=2, batch=8, crop=1)


class Tiny(nn.Module):
    """A network small enough to follow: pooled pixels, one linear layer, ReLU, a head."""

    def __init__(self, classes=CLASSES, dim=DIM):
        super().__init__()
        self.body = nn.Linear(12, dim)
        self.bn = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, classes)

    def features(self, images):
        pooled = nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)
        return torch.relu(self.bn(self.body(pooled)))

    def forward(self, images):
        return self.head(self.features(images))


def tiny(seed=0, **sizes):
    torch.manual_seed(seed)
    return Tiny(**sizes)


def resnet(seed=0, width=4, classes=CLASSES, name="resnet10"):
    """A ResNet of 8 × width features."""
    return build_model(name, classes, width, seed)


def make_split(labels=(0, 1, 2, 3) * 5, size=8, seed=0):
    """Random images with these labels."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (len(labels), size, size, 3), dtype=torch.uint8, generator=rng)
    return Split(images, torch.tensor(labels))


def make_context(
    method,
    params=None,
    *,
    client=0,
    round=0,
    rounds=10,
    model=None,
    data=None,
    knowledge=None,
    memory=None,
    weights=None,
    training=TRAINING,
    classes=CLASSES,
    seed=7,
    run_seed=0,
    buffers="average",
):
    """Everything that a client's work depends on; options of the method as a dictionary."""
    model = tiny(classes=classes) if model is None else model
    return Context(
        client=client,
        round=round,
        rounds=rounds,
        classes=classes,
        params=get_method(method).params.model_validate(params or {}),
        training=training,
        buffers=buffers,
        model=model,
        data=make_split() if data is None else data,
        weights=clone(model.state_dict()) if weights is None else weights,
        knowledge=knowledge or {},
        memory=memory or {},
        rng=torch.Generator().manual_seed(seed),
        seed=seed,
        device=torch.device("cpu"),
        run_seed=run_seed,
    )


def make_client(method, params=None, **context):
    return get_method(method).client(make_context(method, params, **context))


def make_server(method, params=None, *, counts=(20, 20, 20), weights=None, classes=CLASSES, features=DIM, rounds=10):
    weights = {"w": torch.zeros(2)} if weights is None else weights
    chosen = get_method(method)
    return chosen.server(
        chosen.params.model_validate(params or {}), weights, Roster(tuple(counts), classes, features, rounds)
    )


class Together:
    """A method's server with the layers around it, as a round has them."""

    def __init__(self, server, layers):
        self.server, self.layers = server, layers

    @classmethod
    def of(cls, workplace):
        return cls(workplace.server(), workplace.new_layers())

    def broadcast(self, client):
        return self.layers.broadcast(self.server.broadcast(client), client)

    def problem(self, upload):
        return Guard(self.server, layers=self.layers).problem(upload)

    def aggregate(self, uploads):
        return self.server.aggregate(self.layers.receive(iter(uploads)))

    def weights_of(self, uploads):
        """What models weigh in the mean as things stand."""
        layers = Layers([layer for layer in self.layers.all if not isinstance(layer, StylesLayer)])
        return [self.server.weight(upload) for upload in layers.receive(iter(uploads))]


def make_layers(counts, **training):
    """The layers of a run with these settings of training."""
    return layers_of(Setup(training=training), counts, CLASSES)


def make_upload(client, *, count=20, weights=None, metrics=None, **knowledge):
    weights = {"w": torch.zeros(2)} if weights is None else weights
    return Upload(client, count, weights, knowledge, metrics or {})


def run_rounds(method, params=None, *, rounds=2, chosen=None, splits=None, model=None, server=None, memories=None):
    """Play whole rounds with real clients; `chosen` lists who takes part in each. Server, memories, all uploads."""
    model = tiny() if model is None else copy.deepcopy(model)
    splits = splits or [make_split(seed=seed) for seed in range(3)]
    with torch.no_grad():
        features = model.eval().features(torch.zeros(1, 3, 8, 8)).shape[1]
    server = server or make_server(
        method,
        params,
        counts=[len(split) for split in splits],
        weights=clone(model.state_dict()),
        features=features,
        rounds=10,
    )
    memories = {} if memories is None else memories
    everything = []
    first = getattr(server, "done", 0)
    for round in range(first, first + rounds):
        uploads = []
        server.begin(round)
        for client in range(len(splits)) if chosen is None else chosen[round]:
            message = server.broadcast(client)
            context = make_context(
                method,
                params,
                client=client,
                round=round,
                model=model,
                data=splits[client],
                knowledge=message.knowledge,
                weights=message.weights,
                memory=memories.get(client),
                seed=100 * round + client,
            )
            torch.manual_seed(context.seed)
            upload, memories[client] = get_method(method).client(context).update()
            assert (problem := Guard(server).problem(upload)) is None, problem
            assert all(math.isfinite(value) for value in upload.metrics.values())
            uploads.append(upload)
        server.aggregate(iter(uploads))
        server.done = round + 1
        everything.append(uploads)
    return server, memories, everything


def check_resume(method, params=None, **how):
    """A server that is written down after two rounds and read again goes on as if nothing had happened."""
    server, memories, _ = run_rounds(method, params, rounds=3, **how)
    half, kept, _ = run_rounds(method, params, rounds=2, **how)
    again = type(half)(half.params, {}, half.roster)
    again.load_state(half.state())
    again.done = half.done
    resumed, after, _ = run_rounds(method, params, rounds=1, server=again, memories=kept, **how)
    same_record(resumed.state(), server.state())
    for client, memory in memories.items():
        same_record(after[client], memory)


def same_record(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=0, atol=0, equal_nan=True, msg=name)


def make_batch(labels, size=8, epoch=0, seed=0):
    """A batch of random images."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(len(labels), 3, size, size, generator=rng)
    return Batch(images, torch.tensor(labels), epoch, torch.arange(len(labels)))


def make_output(batch, *, seed=1, dim=DIM, classes=CLASSES, zero=False):
    """Random non-negative features in float64 (or zeros) that ask for a gradient, with random logits."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.rand(len(batch.labels), dim, dtype=torch.float64, generator=rng) * (0.0 if zero else 1.0)
    logits = torch.randn(len(batch.labels), classes, dtype=torch.float64, generator=rng)
    return Output(features.requires_grad_(), logits.requires_grad_())


def random_global(absent=(), *, seed=2, dim=DIM, classes=CLASSES, identical=False):
    """Random global prototypes as knowledge."""
    rng = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(classes, dim, dtype=torch.float64, generator=rng)
    if identical:
        prototypes[:] = prototypes[0].clone()
    present = torch.ones(classes, dtype=torch.bool)
    present[list(absent)] = False
    return {"global": prototypes * present[:, None], "present": present}


# Labels of the batch, classes without a prototype, τ, and what else is special: the cases of every contrast.
LOSS_CASES = {
    "usual": {"labels": [0, 1, 2, 3, 0, 1, 1]},
    "class without prototype": {"labels": [0, 1, 2, 3, 3], "absent": (3,)},
    "no class has a prototype": {"labels": [2, 3], "absent": (2, 3)},
    "identical prototypes": {"labels": [0, 1, 2, 3], "identical": True},
    "tiny temperature": {"labels": [0, 1, 2, 3, 2], "tau": 0.01},
    "batch of one class": {"labels": [2, 2, 2]},
    "single sample": {"labels": [1]},
    "zero features": {"labels": [0, 1, 2, 3], "zero": True},
}


def loss_case(name, tau=0.07):
    """Batch, output, knowledge and τ of a case."""
    case = LOSS_CASES[name]
    batch = make_batch(case["labels"])
    out = make_output(batch, zero=case.get("zero", False))
    return (
        batch,
        out,
        random_global(case.get("absent", ()), identical=case.get("identical", False)),
        case.get("tau", tau),
    )


# ---- plain arithmetic in float64, on lists -------------------------------------------------------------------


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a, b):
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths else 0.0


def plain_mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def plain_ce(logits, labels):
    terms = []
    for row, label in zip(logits, labels, strict=True):
        top = max(row)
        terms.append(top + math.log(sum(math.exp(v - top) for v in row)) - row[label])
    return sum(terms) / len(terms)


def minus_log_share(positive, everything):
    """−log Σ_positive e^s / Σ_everything e^s."""
    top = max(everything)
    return math.log(sum(math.exp(s - top) for s in everything)) - math.log(sum(math.exp(s - top) for s in positive))


def plain_contrast(features, labels, prototypes, prototype_labels, tau, extra=None, power=None):
    """Mean over the samples whose class has a prototype; `extra` are more negatives of each sample."""
    terms = []
    for i, (z, y) in enumerate(zip(features, labels, strict=True)):

        def score(c, z=z):
            s = cosine(z, c)
            return (s if power is None else min(max(s, 1e-6), 1.0) ** power) / tau

        scores = [score(c) for c in prototypes]
        positive = [s for s, k in zip(scores, prototype_labels, strict=True) if k == y]
        if positive:
            terms.append(minus_log_share(positive, scores + [score(c) for c in (extra[i] if extra else [])]))
    return sum(terms) / len(terms) if terms else 0.0


def plain_global(knowledge):
    """The prototypes that are there and their classes, as lists."""
    classes = [k for k, present in enumerate(knowledge["present"].tolist()) if present]
    return [knowledge["global"][k].tolist() for k in classes], classes


def plain_finch(points, partition="last"):
    """FINCH by its definition: first neighbours by cosine, joined; again on the means while more than one is left."""

    def joined(vectors):
        neighbour = [
            max((j for j in range(len(vectors)) if j != i), key=lambda j, v=v: (round(cosine(v, vectors[j]), 12), -j))
            for i, v in enumerate(vectors)
        ]
        groups = [{i} for i in range(len(vectors))]
        for i, j in enumerate(neighbour):
            merged = groups[i] | groups[j]
            for member in merged:
                groups[member] = merged
        order = []
        for group in groups:
            if group not in order:
                order.append(group)
        return [order.index(group) for group in groups]

    if len(points) < 3:
        return [0] * len(points)
    labels = joined(points)
    while partition == "last" and max(labels) > 0:
        means = [plain_mean([p for p, c in zip(points, labels, strict=True) if c == k]) for k in range(max(labels) + 1)]
        coarser = joined(means) if len(means) > 2 else [0] * len(means)
        if max(coarser) == 0:
            break
        labels = [coarser[c] for c in labels]
    return labels


def prototype_uploads(held, *, seed=3, dim=DIM, classes=CLASSES, identical=False):
    """Uploads of clients that hold these classes, with random prototypes and counts, all-zero where they lack one."""
    rng = torch.Generator().manual_seed(seed)
    uploads = []
    common = torch.rand(classes, dim, generator=rng)
    for client, mine in enumerate(held):
        prototypes = common.clone() if identical else torch.rand(classes, dim, generator=rng)
        counts = torch.randint(1, 6, (classes,), generator=rng)  # so that all of a client fit into its 20 images
        lacking = [k for k in range(classes) if k not in mine]
        prototypes[lacking], counts[lacking] = 0, 0
        uploads.append(make_upload(client, count=int(counts.sum()), prototypes=prototypes, counts=counts))
    return uploads


# Which classes each client holds: the cases of every server step.
SERVER_CASES = {
    "all classes everywhere": {"held": [range(4)] * 5},
    "two clients": {"held": [range(4)] * 2},
    "a class at one client only": {"held": [range(4), range(3), range(3)]},
    "a class that nobody has": {"held": [(0, 1, 2), (0, 1), (1, 2)]},
    "identical prototypes": {"held": [range(4)] * 4, "identical": True},
    "one client": {"held": [(0, 2, 3)]},
}


def by_class(uploads, classes=CLASSES):
    """The prototypes of each class that were sent, client by client, as lists."""
    return {
        k: [u.knowledge["prototypes"][k].tolist() for u in uploads if u.knowledge["counts"][k] > 0]
        for k in range(classes)
    }
