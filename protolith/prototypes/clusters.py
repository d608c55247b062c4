"""Several prototypes per class: clusters of what the clients sent."""

from typing import NamedTuple

import torch
from torch import Tensor

from protolith.devices import widest
from protolith.losses import class_means
from protolith.prototypes.means import labelled
from protolith.prototypes.neighbours import Partition, cluster_means, finch


class Clusters(NamedTuple):
    """Cluster prototypes, class by class, and who is in which."""

    prototypes: Tensor  # [C, d]
    labels: Tensor  # [C], the class of each cluster, ascending
    membership: Tensor  # [N] or [M, K], the row of `prototypes` that each point went into; -1 for no point


def cluster_points(points: Tensor, labels: Tensor, partition: Partition = "last") -> Clusters:
    """Cluster labelled points, any number per class, within each class (FedPLVM, on clients and server)."""
    membership = torch.full_like(labels, -1)
    cluster_labels: list[int] = []
    for label in torch.bincount(labels).nonzero().squeeze(1).tolist():
        members = (labels == label).nonzero().squeeze(1)
        clusters = finch(points[members], partition)
        membership[members] = clusters + len(cluster_labels)
        cluster_labels += [label] * (int(clusters.max()) + 1)
    return Clusters(cluster_means(points, membership), labels.new_tensor(cluster_labels), membership)


def cluster_per_class(prototypes: Tensor, counts: Tensor, partition: Partition = "last") -> Clusters:
    """Cluster the clients' prototypes [M, K, d] within each class (FPL Eqs. 4-5); membership is [M, K]."""
    points, labels = labelled(prototypes, counts)
    clusters = cluster_points(points, labels, partition)
    membership = torch.full(counts.shape, -1, dtype=labels.dtype, device=labels.device)
    membership[counts > 0] = clusters.membership
    return clusters._replace(membership=membership)


def class_means_of(clusters: Tensor, cluster_labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Average the clusters of each class, the unbiased prototypes (FPL Eq. 6): [K, d] and present [K]."""
    means, counts = class_means(clusters.to(widest(clusters.device)), cluster_labels, classes)
    return means.to(clusters.dtype), counts > 0
