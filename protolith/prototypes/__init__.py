"""Prototypes: functions on tensors that build them, aggregate them over clients and cluster them.

A set of class prototypes is [K, d] with a vector [K] (booleans or counts) that says which classes are
present; the rows of absent classes are zeros. The prototypes of M clients are [M, K, d] with counts [M, K].
"""

from protolith.prototypes.aggregation import average, ema, keep_previous, reweight
from protolith.prototypes.clusters import Clusters, class_means_of, cluster_per_class, cluster_points
from protolith.prototypes.means import ClassMeans, labelled, sent_means
from protolith.prototypes.neighbours import Partition, cluster_means, finch
from protolith.prototypes.sets import CLUSTERS, GLOBAL, SENT, SENT_SEVERAL, Form, PrototypeSet

__all__ = [
    "CLUSTERS",
    "GLOBAL",
    "SENT",
    "SENT_SEVERAL",
    "ClassMeans",
    "Clusters",
    "Form",
    "Partition",
    "PrototypeSet",
    "average",
    "class_means_of",
    "cluster_means",
    "cluster_per_class",
    "cluster_points",
    "ema",
    "finch",
    "keep_previous",
    "labelled",
    "reweight",
    "sent_means",
]
