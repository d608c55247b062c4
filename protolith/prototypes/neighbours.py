"""FINCH: clustering by first neighbours, without parameters (Sarfraz et al., CVPR 2019).

Our own rather than the package `finch-clust`, which holds the whole distance matrix in memory and lets
rounding errors choose among equally near neighbours; the tests compare the two.
"""

from typing import Literal

import torch
from torch import Tensor

from protolith.losses import class_means

Partition = Literal["last", "first"]

BLOCK = 2**22  # cosines held at once in the search for neighbours (32 MB)
DECIMALS = 12  # cosines that agree to this many are equal: rounding errors must not choose a neighbour


def finch(points: Tensor, partition: Partition = "last") -> Tensor:
    """Cluster points [n, d] by cosine similarity: labels [n], numbered in the order of the first members.

    "first" joins each point with its first neighbour (FPL Eq. 4); "last" goes on with the cluster means as
    long as more than one cluster is left. Points are read as float32, the precision in which they travel.
    """
    if len(points) < 3:
        return torch.zeros(len(points), dtype=torch.int64, device=points.device)
    points = points.detach().float().double()
    labels = _linked(first_neighbours(points))
    while partition == "last":
        # Every cluster has two members or more, so the number of clusters at least halves.
        coarser = _linked(first_neighbours(cluster_means(points, labels)))
        if not coarser.any():
            break
        labels = coarser[labels]
    return labels


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Average the points of each cluster: [C, d] for labels 0 to C − 1."""
    clusters = int(labels.max()) + 1 if len(labels) else 0
    return class_means(points.double(), labels, clusters)[0].to(points.dtype)


def first_neighbours(points: Tensor) -> Tensor:
    """Find each point's most similar other point, the first among equals; a zero vector has cosine 0."""
    lengths = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    directions = points / torch.where(lengths > 0, lengths, 1.0)
    rows = max(1, BLOCK // max(1, len(points)))
    return torch.cat([_nearest(directions, start, rows) for start in range(0, len(points), rows)])


def _nearest(directions: Tensor, start: int, rows: int) -> Tensor:
    """Find the first neighbours of the `rows` points from `start` on; a lone point is its own."""
    cosines = (directions[start : start + rows] @ directions.T).mul_(10**DECIMALS).round_()
    cosines.diagonal(start).fill_(-torch.inf)
    return cosines.argmax(dim=1)


def _linked(neighbours: Tensor) -> Tensor:
    """Label the connected components of the graph that joins each point to its first neighbour.

    Points that share a first neighbour, the third case of FPL Eq. 4, are connected through it.
    """
    from scipy.sparse import coo_array  # 20 MB that only those pay who cluster
    from scipy.sparse.csgraph import connected_components

    target = neighbours.cpu().numpy()
    size = len(target)
    graph = coo_array((torch.ones(size).numpy(), (torch.arange(size).numpy(), target)), shape=(size, size))
    labels = connected_components(graph, directed=True, connection="weak")[1]
    return torch.from_numpy(labels).to(neighbours)
