"""A method that trains nothing: what is left is the engine."""

from protolith.methods import fedavg
from protolith.methods.base import Params
from protolith.methods.registry import Method


class Client(fedavg.Client):
    """Sends back what it was sent."""

    def train(self) -> None:
        """Do nothing."""


METHOD = Method(
    name="bench-trivial",
    title="trivial",
    paper="none",
    idea="no work: what a round costs without training",
    objective="none",
    server_step="as FedAvg",
    traffic="as FedAvg",
    params=Params,
    client=Client,
    server=fedavg.Server,
)
