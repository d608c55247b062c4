"""Style exchange: clients train on their own images in the colours of the other sites.

A client sends its style (twelve numbers, protolith.data.styles). The server clusters the styles into
pseudo-domains and sends every client the styles of the clusters and which one is its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protolith.data.styles import LENGTH, LEVEL, Draw, exchange, pooled, style_of_split
from protolith.federation.layers.base import Layer
from protolith.methods.base import Context, Spec
from protolith.methods.shown import Shown
from protolith.prototypes import finch
from protolith.records import Broadcast, Record, Upload

STYLE = "exchange/style"  # in an upload: the client's own
STYLES, OWN = "exchange/styles", "exchange/own"  # in a broadcast: the clusters', and which is the client's
SEEN, CLUSTER, MADE = "styles/seen", "styles/cluster", "styles/made"  # in a state: clients' styles and clusters
# What these were called while a method's server kept them (checkpoints up to format 3).
BEFORE = {"extra/exchange/seen": SEEN, "extra/exchange/cluster": CLUSTER, "knowledge/exchange/styles": MADE}
NEAR = 3.0 / 255.0  # styles that differ by less, three grey levels in all, are the same
APART = 3.0  # a client so many times farther from its nearest fellow than that one is from its own stands alone
ERRORS = 4.0  # so does one whose mean style is so many standard errors away from its nearest fellow's

Array = np.ndarray[Any, Any]


class StylesLayer(Layer):
    """Gathers the clients' styles and clusters them; re-colours images before they are cropped and mirrored.

    Single clients' styles and the others' clusters go to nobody: no method sees them, so that none can send them.
    """

    def __init__(self, probability: float, draw: Draw, images: Sequence[int]) -> None:
        self.probability = probability
        self.draw = draw
        self.images_of = torch.tensor(tuple(images))
        self.seen = torch.zeros(len(images), LENGTH)
        self.cluster = torch.full((len(images),), -1)  # -1: not heard of
        self.made: Tensor | None = None  # the clusters' styles

    def images(self, images: Tensor, client: Context) -> Tensor:
        """Re-colour stored images; in the first round no style is known yet."""
        styles = client.knowledge.get(STYLES)
        if styles is None or self.probability == 0:
            return images
        return exchange(images, other_styles(client.knowledge), self.probability, self.draw, client.rng)

    def upload(self, upload: Upload, client: Context) -> Upload:
        """The style beside whatever the method sends."""
        return upload.with_knowledge(**{STYLE: style_of_split(client.data)})

    def schema(self) -> dict[str, Spec]:
        """Twelve numbers more."""
        return {STYLE: Spec((LENGTH,), least=0.0, most=1.0)}

    def knowledge(self) -> Record:
        """The styles of the clusters."""
        return {} if self.made is None else {STYLES: self.made}

    def broadcast(self, message: Broadcast, client: int) -> Broadcast:
        """Tell a client its cluster."""
        if self.made is None:
            return message
        found = {STYLES: self.made, OWN: self.cluster[client].clone()}
        return Broadcast(message.weights, {**message.knowledge, **found})

    def receive(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """Take the styles out of the uploads; after the last, cluster all that have ever come."""
        seen, cluster = self.seen.clone(), self.cluster.clone()
        for upload in uploads:
            seen[upload.client], cluster[upload.client] = upload.knowledge[STYLE], 0
            others = {name: held for name, held in upload.knowledge.items() if name != STYLE}
            upload = replace(upload, knowledge=others)
            yield upload
            del upload  # before the next one comes, so that memory holds one
        known = cluster >= 0
        cluster[known] = pseudo_domains(seen[known], self.images_of[known])
        self.seen, self.cluster, self.made = seen, cluster, pooled(seen[known], cluster[known])

    def shown(self, shown: Shown) -> Shown:
        """The styles and the pseudo-domains, beside whatever the method shows."""
        return replace(shown, colours=self.seen, colour_groups=self.cluster, group_colours=self.made)

    def state(self) -> Record:
        """What was heard, and what was made of it."""
        made = {} if self.made is None else {MADE: self.made}
        return {SEEN: self.seen, CLUSTER: self.cluster, **made}

    def load_state(self, state: Record) -> None:
        """Go on from it."""
        self.seen, self.cluster, self.made = state[SEEN], state[CLUSTER], state.get(MADE)


def other_styles(knowledge: Mapping[str, Tensor]) -> Tensor:
    """The styles of the other clusters; where there is but one, that of all clients together."""
    styles, own = knowledge[STYLES].cpu(), int(knowledge.get(OWN, torch.tensor(-1)))
    return styles if len(styles) == 1 else styles[torch.arange(len(styles)) != own]


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
