"""MOON: contrast features with the global model's and the client's previous one's (Li et al., CVPR 2021)."""

import copy
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from protolith.losses import model_contrast
from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method
from protolith.models.saved import load_weights
from protolith.records import Record, clone, under_prefix, with_prefix


class Params(base.Params):
    """Options of MOON."""

    mu: float = Field(
        1.0,
        ge=0,
        description="weight of the contrast; the default of the authors' code (the papers of the tables give none; the "
        "public code of FPL has 5, with which it is the worst baseline)",
    )
    tau: float = Field(0.5, gt=0, description="temperature of the contrast; all public code agrees on it")


class Client(fedavg.Client):
    """Adds μ · −log e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ})."""

    shapes_features = True

    def start(self) -> None:
        """Set up the two frozen networks, once there is a previous model to contrast with."""
        super().start()
        self.frozen: list[Any] = []
        if previous := under_prefix("previous", self.memory):
            self.frozen = [copy.deepcopy(self.model), copy.deepcopy(self.model)]
            load_weights(self.frozen[1], previous)
            for net in self.frozen:
                net.eval().requires_grad_(False)

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy, and the contrast from the client's second round on."""
        terms = super().loss(batch, out)
        if self.frozen:
            with torch.no_grad():
                from_global, from_previous = (net.features(batch.images) for net in self.frozen)
            distance = model_contrast(out.features, from_global, from_previous, self.params.tau)
            terms["con"] = self.params.mu * distance
        return terms

    def remember(self) -> Record:
        """Keep the model as training left it."""
        return {**super().remember(), **with_prefix("previous", clone(self.model.state_dict()))}


METHOD = Method(
    name="moon",
    title="MOON",
    paper="Li et al., Model-Contrastive Federated Learning, CVPR 2021",
    idea="pull features to the global model's and push them from the client's own previous model's",
    objective="CE + μ ℓ_con, ℓ_con = −log e^{cos(z,z_glob)/τ} / (e^{cos(z,z_glob)/τ} + e^{cos(z,z_prev)/τ})",
    server_step="as FedAvg",
    traffic="as FedAvg",
    passes="per batch one forward and one backward pass and, from a client's second round on, two more forward passes",
    memory="the client's previous model",
    notes="No projection head; the two other networks are frozen and in evaluation mode.",
    params=Params,
    client=Client,
    server=fedavg.Server,
)
