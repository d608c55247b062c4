"""FedOpt: the mean of the clients' moves is the gradient of a server optimiser (Reddi et al., ICLR 2021)."""

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from protolith.methods import base, fedavg
from protolith.methods.registry import Method
from protolith.records import Record, Upload, under_prefix, with_prefix

SERVER_LR = {"sgd": 0.5, "adam": 0.01, "yogi": 0.01}


class Params(base.Params):
    """Options of FedOpt."""

    optimizer: Literal["sgd", "adam", "yogi"] = Field(
        "sgd", description="the server's; FPL does not say which, its public code has SGD with momentum (FedAvgM)"
    )
    server_lr: float = Field(
        0.0,
        ge=0,
        description="server learning rate η; 0: the optimiser's own: 0.5 for sgd (public code of FPL), 0.01 for adam "
        "and yogi (a first step moves every weight by about η, and 0.1 is as large as the weights themselves)",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="momentum; the value of the paper and of all public code")
    beta2: float = Field(0.99, ge=0, lt=1, description="memory of the squares in adam and yogi; the paper's value")
    tau: float = Field(1e-3, gt=0, description="adaptivity of adam and yogi, in the denominator; the paper's value")
    average: Literal["images", "equal"] = Field(
        "images", description="how moves are averaged; by images as in FedAvg, or equally as in the public code of FPL"
    )


class Server(fedavg.Server):
    """Keeps the moments m and v in `extra`; buffers are averaged and take no step."""

    def weight(self, upload: Upload) -> float:
        """The weight of a client's model in the mean."""
        return float(upload.count) if self.params.average == "images" else 1.0

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Go from θ^t along the optimiser's step for Δ = mean θ_m − θ^t."""
        before = self.weights
        light = super().aggregate(uploads)
        m, v, moved = under_prefix("m", self.extra), under_prefix("v", self.extra), dict[str, Tensor]()
        for name, mean in self.weights.items():
            if self.learns(name):
                delta = mean - before[name]
                m[name], v[name] = self._moments(delta, m.get(name), v.get(name))
                moved[name] = before[name] + self._step(m[name], v[name])
        self.weights = {**self.weights, **moved}
        squares: Record = {} if self.params.optimizer == "sgd" else with_prefix("v", v)
        self.extra = {**with_prefix("m", m), **squares}
        return light

    def _moments(self, delta: Tensor, m: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        p = self.params
        m = torch.zeros_like(delta) if m is None else m
        if p.optimizer == "sgd":
            return p.beta1 * m + delta, delta
        v = torch.full_like(delta, p.tau**2) if v is None else v  # where the paper starts
        square = delta.square()
        kept = p.beta2 * v + (1 - p.beta2) * square
        if p.optimizer == "yogi":
            kept = v - (1 - p.beta2) * square * torch.sign(v - square)
        return p.beta1 * m + (1 - p.beta1) * delta, kept

    def _step(self, m: Tensor, v: Tensor) -> Tensor:
        lr = self.params.server_lr or SERVER_LR[self.params.optimizer]
        return lr * m if self.params.optimizer == "sgd" else lr * m / (v.sqrt() + self.params.tau)


METHOD = Method(
    name="fedopt",
    title="FedOpt",
    paper="Reddi et al., Adaptive Federated Optimization, ICLR 2021",
    idea="treat the mean of the clients' moves as the gradient of an optimiser on the server",
    objective="CE",
    server_step="Δ = mean θ_m − θ^t; sgd: m ← β1 m + Δ, θ ← θ + η m; adam, yogi: m ← β1 m + (1 − β1) Δ, "
    "adam: v ← β2 v + (1 − β2) Δ², yogi: v ← v − (1 − β2) Δ² sign(v − Δ²), θ ← θ + η m / (√v + τ)",
    traffic="as FedAvg",
    notes="With sgd the steps add up to η / (1 − β1) = 5 times the clients' moves.",
    params=Params,
    client=fedavg.Client,
    server=Server,
)
