"""SOLO: every client trains alone; nothing is exchanged (the lower bound in FedCode's tables)."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch

from protolith.methods import fedavg
from protolith.methods.base import Params, Roster
from protolith.methods.registry import Method
from protolith.records import Broadcast, Record, Upload


class Client(fedavg.Client):
    """Keeps its whole model."""

    def keeps(self, name: str) -> bool:
        """Keep everything."""
        return True

    def sends(self, name: str) -> bool:
        """Send nothing."""
        return False


class Server(fedavg.Server):
    """Sends the common starting point for a client's first round and nothing afterwards."""

    evaluates: ClassVar[Literal["global", "clients"]] = "clients"
    counts_by: ClassVar[Literal["weight", "learned", "nothing"]] = "nothing"

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        self.extra = {"started": torch.zeros(len(roster.counts), dtype=torch.bool)}

    def broadcast(self, client: int) -> Broadcast:
        """Send the starting point to a client that has no model yet."""
        return Broadcast({} if self.extra["started"][client] else self.weights)

    def expects(self, name: str) -> bool:
        """Expect nothing."""
        return False

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Note who has started."""
        light = super().aggregate(uploads)
        started = self.extra["started"].clone()
        started[[upload.client for upload in light]] = True
        self.extra = {"started": started}
        return light


METHOD = Method(
    name="solo",
    title="SOLO",
    paper="the lower bound of FedCode's tables (Zhang et al., 2025)",
    idea="every client trains alone, from a common starting point",
    objective="CE",
    server_step="none",
    traffic="none after the common starting point",
    memory="the client's model",
    accuracy="of the clients' own models, each on its own domain",
    params=Params,
    client=Client,
    server=Server,
)
