"""Style exchange, for any method: clients train on their own images in the colours of the other sites.

A client sends its style (twelve numbers, protolith.data.styles). The server clusters the styles into
pseudo-domains and sends every client the styles of the clusters and which one is its own.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protolith.data.styles import LENGTH, LEVEL, Draw, exchange, pooled, style_of
from protolith.methods import fedavg
from protolith.methods.base import Roster, Spec
from protolith.methods.registry import Method
from protolith.methods.robust import ALIKE, Kind
from protolith.methods.shown import Shown
from protolith.prototypes import finch
from protolith.records import Broadcast, Record, Upload, with_prefix

STYLE = "exchange/style"  # in an upload: the client's own
STYLES, OWN = "exchange/styles", "exchange/own"  # in a broadcast: the clusters', and which is the client's
SEEN, CLUSTER = "exchange/seen", "exchange/cluster"  # on the server: clients' styles and clusters (-1: not heard of)
NEAR = 3.0 / 255.0  # styles that differ by less, three grey levels in all, are the same
APART = 3.0  # a client so many times farther from its nearest fellow than that one is from its own stands alone
ERRORS = 4.0  # so does one whose mean style is so many standard errors away from its nearest fellow's

Array = np.ndarray[Any, Any]


class Client(fedavg.Client):
    """Sends its style, and re-colours images before they are cropped and mirrored."""

    @property
    def style_probability(self) -> float:
        """How likely an image is re-coloured."""
        return self.training.style_exchange

    @property
    def style_draw(self) -> Draw:
        """How the target of an image is drawn from a style."""
        return self.training.style_draw

    def restyle(self, images: Tensor) -> Tensor:
        """Re-colour stored images; in the first round no style is known yet."""
        styles = self.knowledge.get(STYLES)
        if styles is None or self.style_probability == 0:
            return images
        return exchange(images, self.other_styles(styles.cpu()), self.style_probability, self.style_draw, self.rng)

    def other_styles(self, styles: Tensor) -> Tensor:
        """The styles of the other clusters; where there is but one, that of all clients together."""
        own = int(self.knowledge.get(OWN, torch.tensor(-1)))
        return styles if len(styles) == 1 else styles[torch.arange(len(styles)) != own]

    def upload(self) -> Upload:
        """The style beside whatever the method sends."""
        return super().upload().with_knowledge(**{STYLE: style_of(self.context.data.images)})


class Server(fedavg.Server):
    """Gathers the clients' styles and clusters them.

    Single clients' styles and the others' clusters go to nobody: they are in a record of their own, which the method
    on which this is put does not see, so that it cannot send them even if it sends all that it keeps.
    """

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        clients = len(roster.counts)
        self.heard: Record = {SEEN: torch.zeros(clients, LENGTH), CLUSTER: torch.full((clients,), -1)}

    def schema(self) -> dict[str, Spec]:
        """Twelve numbers more."""
        return {**super().schema(), STYLE: Spec((LENGTH,), least=0.0, most=1.0)}

    def broadcast(self, client: int) -> Broadcast:
        """Tell a client its cluster."""
        message = super().broadcast(client)
        if STYLES not in self.knowledge:
            return message
        found = {STYLES: self.knowledge[STYLES], OWN: self.heard[CLUSTER][client].clone()}
        return Broadcast(message.weights, {**message.knowledge, **found})

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Do what the method does, then cluster all styles that have ever come."""
        seen, cluster = self.heard[SEEN].clone(), self.heard[CLUSTER].clone()

        def take_style(upload: Upload) -> Upload:
            seen[upload.client], cluster[upload.client] = upload.knowledge[STYLE], 0
            return replace(upload, knowledge={name: held for name, held in upload.knowledge.items() if name != STYLE})

        light = super().aggregate(map(take_style, uploads))
        known = cluster >= 0
        cluster[known] = pseudo_domains(seen[known], torch.tensor(self.roster.counts)[known])
        self.heard = {SEEN: seen, CLUSTER: cluster}
        self.knowledge = {**self.knowledge, STYLES: pooled(seen[known], cluster[known])}
        return light

    def shown(self) -> Shown:
        """The styles and the pseudo-domains, beside whatever the method shows."""
        found = {"colours": self.heard[SEEN], "colour_groups": self.heard[CLUSTER]}
        return replace(super().shown(), **found, group_colours=self.knowledge.get(STYLES))

    def state(self) -> Record:
        """What was heard is saved with what the method keeps for itself."""
        return {**super().state(), **with_prefix("extra", self.heard)}

    def load_state(self, state: Record) -> None:
        """Take it out again."""
        super().load_state(state)
        self.heard = {name: self.extra[name] for name in (SEEN, CLUSTER)}
        self.extra = {name: held for name, held in self.extra.items() if name not in self.heard}


class Balanced(Server):
    """Averages models so that every pseudo-domain has the same weight."""

    @classmethod
    def robust_problem(cls, kind: Kind, params: Any) -> str | None:
        """A rule that counts every client alike leaves nothing of the weights."""
        if kind in ALIKE:
            return "weights that make every style count alike would have no effect"
        return super().robust_problem(kind, params)

    def weight(self, upload: Upload) -> float:
        """n_m / n_j(m): a client's share in its pseudo-domain; the mean divides by the number of domains.

        A client whose style is not known yet counts as if its pseudo-domain were of average size: in the first round
        all clients do, which is FedAvg.
        """
        cluster = self.heard[CLUSTER]
        images = images_by_domain(torch.tensor(self.roster.counts), cluster)
        own = int(cluster[upload.client])
        return upload.count / float(images[own] if own >= 0 else images.mean())


def images_by_domain(counts: Tensor, cluster: Tensor) -> Tensor:
    """The number of images of each pseudo-domain [J]; 1 where none is known."""
    known = cluster >= 0
    if not known.any():
        return torch.ones(1, dtype=torch.float64)
    return torch.bincount(cluster[known], weights=counts[known].double())


def pseudo_domains(styles: Tensor, counts: Tensor) -> Tensor:
    """Cluster styles [M, 12], each of so many images, without knowing any domain: labels [M].

    FINCH's first partition of the differences from the mean style, with two corrections: FINCH leaves nobody alone,
    so a client far from all of its cluster is set apart; and it splits what is all but the same, so that is joined.
    """
    points = styles.double().cpu().numpy()
    labels = finch(styles - styles.mean(dim=0), "first").cpu().numpy()
    return torch.from_numpy(_joined(points, _set_apart(points, counts.double().numpy(), labels)))


def _set_apart(points: Array, counts: Array, labels: Array) -> Array:
    """Give clients that are far from their nearest fellow a cluster each.

    Far is: by more than chance explains, or compared with how near that fellow's own nearest is.
    """
    from scipy.spatial import KDTree  # 30 MB that only those pay who exchange styles

    labels = labels.copy()
    for label in range(labels.max() + 1):
        members = (labels == label).nonzero()[0]
        if len(members) > 1:
            distances, order = map(np.asarray, KDTree(points[members]).query(points[members], k=2))
            nearest, fellow = distances[:, 1].clip(min=NEAR), order[:, 1]
            far = nearest > APART * nearest[fellow]
            far |= _standard_errors(points[members], counts[members], fellow) > ERRORS
            lone = members[far]
            labels[lone] = labels.max() + 1 + np.arange(len(lone))
    return labels


def _standard_errors(points: Array, counts: Array, fellow: Array) -> Array:
    """How far the mean styles of clients are from their fellows', in standard errors of the difference."""
    means, deviations = np.split(points, 2, axis=1)
    variance = deviations**2 / counts[:, None] + LEVEL**2
    squares = (means - means[fellow]) ** 2 / (variance + variance[fellow])
    return np.asarray(np.sqrt(squares.mean(axis=1)))


def _joined(points: Array, labels: Array) -> Array:
    """Join clusters whose mean styles are all but the same; number the clusters in the order of their first members."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import KDTree

    values, labels = np.unique(labels, return_inverse=True)
    means = np.stack([points[labels == label].mean(axis=0) for label in range(len(values))])
    pairs = KDTree(means).query_pairs(NEAR, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(values), len(values)))
    labels = connected_components(graph, directed=False)[1][labels]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def with_exchange(method: Method, balance: bool = False) -> Method:
    """The same method with style exchange, and with pseudo-domains that count alike."""
    client = type("Client", (Client, method.client), {"__doc__": method.client.__doc__})
    server = type("Server", (Balanced if balance else Server, method.server), {"__doc__": method.server.__doc__})
    return replace(method, client=client, server=server, protects=False)  # styles are sent as they are
