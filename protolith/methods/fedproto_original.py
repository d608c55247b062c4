"""FedProto as published: clients exchange prototypes and keep their models (Tan et al., AAAI 2022)."""

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from protolith.methods import fedproto, solo
from protolith.methods.registry import Method, classify
from protolith.models import Network
from protolith.records import Broadcast, Record


class Params(fedproto.Params):
    """Options of the original FedProto."""

    prediction: Literal["head", "nearest"] = Field(
        "head", description="classify with the network's head, as every other method here, or by the nearest prototype"
    )


class Client(solo.Client, fedproto.Client):
    """FedProto's loss; keeps its whole model and sends prototypes only."""


class Server(solo.Server, fedproto.Server):
    """Averages prototypes; sends the common starting point for a client's first round."""

    def broadcast(self, client: int) -> Broadcast:
        """The prototypes, and whether to predict with them: prediction sees nothing but what is sent."""
        nearest = {"nearest": torch.tensor(True)} if self.params.prediction == "nearest" and self.knowledge else {}
        return Broadcast(super().broadcast(client).weights, {**self.knowledge, **nearest})


def predict(model: nn.Module, images: Tensor, knowledge: Record) -> Tensor:
    """The head's logits, or minus the distances to the prototypes."""
    if "nearest" not in knowledge:
        return classify(model, images, knowledge)
    features = cast(Network, model).features(images)
    distances = (features[:, None] - knowledge["global"]).square().mean(dim=2)
    return -distances.masked_fill(~knowledge["present"], torch.inf)


METHOD = Method(
    name="fedproto-original",
    title="FedProto (original)",
    paper="Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022",
    idea="pull features to the mean prototype of their class over all clients; models stay where they are",
    objective="CE + μ · mean (z − G^y)²",
    server_step="G^k = mean over the clients that have class k of p_m^k; no model is averaged",
    traffic="down: K × d prototypes (weights once, as the common starting point); up: K × d prototypes, K counts",
    memory="the client's model",
    accuracy="of the clients' own models, each on its own domain",
    notes="The public code averages over clients, the paper over samples and clients; we follow the code.",
    params=Params,
    client=Client,
    server=Server,
    predict=predict,
)
