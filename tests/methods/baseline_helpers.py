"""A tiny network, a toy of quadratics and a federation in miniature, for the tests of the baselines."""

import torch
from torch import nn

from protolith.data.domain import Split
from protolith.federation.guards import Guard
from protolith.federation.local_update import local_update, one_thread
from protolith.methods import fedavg
from protolith.methods.base import Batch, Context, Output, Roster, Training
from protolith.methods.registry import get_method
from protolith.records import Upload, clone
from protolith.seeds import derive

CLASSES, DIM = 3, 4
QUICK = Training(epochs=2, batch=8, lr=0.05, crop=1)


class Tiny(nn.Module):
    """A convolution, batch normalisation and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, DIM, 3)
        self.bn = nn.BatchNorm2d(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def features(self, images):
        return torch.relu(self.bn(self.conv(images))).mean(dim=(2, 3))

    def forward(self, images):
        return self.head(self.features(images))


class Point(nn.Module):
    """A network that is one vector; what it makes of images does not matter."""

    def __init__(self, dim):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(dim, dtype=torch.float64))
        self.head = nn.Identity()

    def features(self, images):
        return self.theta.expand(len(images), -1)


def tiny(seed=0, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tiny().to(dtype)


def split(n=20, seed=0, labels=None, side=6):
    """Random images; the labels are all classes in turn unless given."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, side, side, 3), generator=rng, dtype=torch.uint8)
    return Split(images, torch.arange(n) % CLASSES if labels is None else torch.tensor(labels))


def params_of(method, **options):
    return get_method(method).params(**options)


def context(method, *, model=None, weights=None, data=None, client=0, round_=0, seed=0, rounds=10, **given):
    """A client's context; knowledge, memory, training and buffers by name, the method's options in `params`."""
    model = tiny() if model is None else model
    seed = derive(seed, round_, client)
    return Context(
        client=client,
        round=round_,
        rounds=rounds,
        classes=CLASSES,
        params=params_of(method, **given.get("params", {})),
        training=given.get("training", QUICK),
        buffers=given.get("buffers", "average"),
        model=model,
        data=split() if data is None else data,
        weights=clone(model.state_dict()) if weights is None else weights,
        knowledge=given.get("knowledge", {}),
        memory=given.get("memory", {}),
        rng=torch.Generator().manual_seed(seed),
        seed=seed,
        device=torch.device("cpu"),
    )


def server(method, counts=(20, 20), *, model=None, rounds=10, **options):
    weights = clone((tiny() if model is None else model).state_dict())
    return get_method(method).server(params_of(method, **options), weights, Roster(tuple(counts), CLASSES, DIM, rounds))


def random_weights(like, seed):
    """Random numbers in the shapes of a record."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(t.shape, generator=rng, dtype=torch.float64).to(t.dtype)
        if t.is_floating_point()
        else torch.randint(1, 100, t.shape, generator=rng)
        for name, t in like.items()
    }


def uploads_for(a_server, clients, seed=0, knowledge=None):
    """Random uploads of these clients; `knowledge` is a function of the client."""
    return [
        Upload(m, a_server.roster.counts[m], random_weights(a_server.weights, 100 * seed + m), (knowledge or empty)(m))
        for m in clients
    ]


def empty(client):
    return {}


def plain_mean(records, weights):
    """Weighted mean of records in plain loops of float64; integers are truncated."""
    mean = {}
    for name, first in records[0].items():
        flat = [0.0] * first.numel()
        for record, weight in zip(records, weights, strict=True):
            for i, value in enumerate(record[name].flatten().tolist()):
                flat[i] += weight * value / sum(weights)
        mean[name] = torch.tensor(flat, dtype=torch.float64).reshape(first.shape)
        if not first.is_floating_point():
            mean[name] = mean[name].trunc()
    return mean


def same(record, expected, tolerance=1e-6):
    """Assert that two records agree."""
    assert record.keys() == expected.keys()
    for name, tensor in record.items():
        torch.testing.assert_close(tensor.double(), expected[name].double(), rtol=tolerance, atol=tolerance, msg=name)


def batch_of(data, dtype=torch.float64):
    """All images of a split as one batch in float64."""
    images = (data.images.to(dtype) / 128 - 1).permute(0, 3, 1, 2)
    return Batch(images, data.labels, 0, torch.arange(len(data)))


class Federation:
    """A server and its clients, without files and processes; every upload goes through the guard."""

    def __init__(self, method, datas, *, model=None, training=QUICK, buffers="average", rounds=10, **options):
        self.method, self.datas, self.training, self.buffers, self.options = method, datas, training, buffers, options
        self.model = tiny() if model is None else model
        counts = [len(data) for data in datas]
        self.server = server(method, counts, model=self.model, rounds=rounds, **options)
        self.memories, self.round, self.rounds = {}, 0, rounds

    def update(self, client):
        """One client's work in this round."""
        sent = self.server.broadcast(client)
        given = context(
            self.method, model=self.model, weights=sent.weights, knowledge=sent.knowledge, client=client,
            memory=self.memories.get(client, {}), data=self.datas[client], round_=self.round, rounds=self.rounds,
            training=self.training, buffers=self.buffers, params=self.options,
        )  # fmt: skip
        return local_update(get_method(self.method).client, given)

    def step(self, clients=None):
        """One round; the uploads come as a stream."""
        self.server.begin(self.round)
        guard, seen = Guard(self.server), []

        def stream():
            for client in range(len(self.datas)) if clients is None else clients:
                upload, self.memories[client] = self.update(client)
                assert guard.problem(upload) is None
                seen.append(upload)
                yield upload

        self.server.aggregate(stream())
        self.round += 1
        return seen


def toy_distances(monkeypatch, methods, *, momentum, rounds=50, participants=None):
    """How far from the joint optimum each method ends, on quadratics of different minima and curvatures.

    Client m has n_m images and the loss ½ Σ_v a_mv (θ_v − b_mv)²; the joint optimum is that of Σ n_m loss_m.
    """
    rng = torch.Generator().manual_seed(3)
    sizes, dim = [10, 20, 40], 5
    curvature = torch.rand(3, dim, generator=rng, dtype=torch.float64) * 2 + 0.2
    minimum = torch.randn(3, dim, generator=rng, dtype=torch.float64) * 3
    share = torch.tensor(sizes, dtype=torch.float64)[:, None] * curvature
    optimum = (share * minimum).sum(0) / share.sum(0)

    def quadratic(self, batch, out):
        m = self.context.client
        return {"ce": 0.5 * (curvature[m] * (self.model.theta - minimum[m]).square()).sum()}

    monkeypatch.setattr(fedavg.Client, "loss", quadratic)
    monkeypatch.setattr(fedavg.Client, "forward", lambda self, batch: Output(batch.images, batch.images))
    training = Training(
        epochs=20, batch=64, lr=0.1 * (1 - momentum), momentum=momentum, weight_decay=0, crop=0, flip=False
    )
    distances = {}
    for name, options in methods.items():
        federation = Federation(name, [split(n) for n in sizes], model=Point(dim), training=training, **options)
        with one_thread():
            for round_ in range(rounds):
                federation.step(participants(round_) if participants else None)
        distances[name] = float((federation.server.weights["theta"] - optimum).norm())
    return distances
