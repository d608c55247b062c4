"""What a server made of a round's uploads, for people to look at: the report draws it and computes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from protolith.prototypes import Clusters
from protolith.records import Record, Upload


@dataclass(frozen=True)
class Shown:
    """The clusters, weights and groups that a server used; what a method has none of is None."""

    clusters: Tensor | None = None  # [N], the cluster of each prototype that is in one
    senders: Tensor | None = None  # [N], the client that sent it
    labels: Tensor | None = None  # [C], the class of each cluster
    weights: Tensor | None = None  # [M, K], the share of each sender's prototype in the server's new one
    weighed: Tensor | None = None  # [M], these senders
    style_groups: Tensor | None = None  # [clients], the cluster of each client's style prototype; -1: not heard of
    colours: Tensor | None = None  # [clients, 12], the styles that are exchanged (protolith.data.styles)
    colour_groups: Tensor | None = None  # [clients], the pseudo-domain of each; -1: not heard of
    group_colours: Tensor | None = None  # [J, 12], the style of each pseudo-domain

    def record(self) -> Record:
        """What there is of it, to be written down."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    @classmethod
    def of(cls, record: Record) -> "Shown":
        """Read it from a record; names of a later version are left out."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})


def shown_clusters(found: Clusters, senders: Tensor) -> Shown:
    """Who is in which cluster; `senders` has the client of every entry of the membership."""
    held = found.membership >= 0
    return Shown(clusters=found.membership[held].cpu(), senders=senders[held.cpu()], labels=found.labels.cpu())


def clients_of(uploads: Sequence[Upload]) -> Tensor:
    """The clients that sent these uploads."""
    return torch.tensor([upload.client for upload in uploads])
