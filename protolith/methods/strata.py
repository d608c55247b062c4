"""Strata: every site trains on its own images in the other sites' styles, and every style counts alike."""

from typing import Any

from pydantic import Field

from protolith.data.styles import Draw
from protolith.methods import base, with_exchange
from protolith.methods.registry import Method
from protolith.methods.robust import Kind
from protolith.records import Upload


class Params(base.Params):
    """Options of Strata; the switches are the rows of its ablation."""

    exchange: float = Field(0.8, ge=0, le=1, description="probability that a training image is re-coloured; 0: never")
    draw: Draw = Field(
        "independent",
        description="how an image's target is drawn from a style: each channel by itself, all together (joint), or "
        "the mean; fixed: from one broad style that is nobody's, the control of the ablation",
    )
    balance: bool = Field(True, description="give every pseudo-domain the same weight; off: weigh by images as FedAvg")


class Client(with_exchange.Client):
    """CE on re-coloured images."""

    @property
    def style_probability(self) -> float:
        """How likely an image is re-coloured."""
        return float(self.params.exchange)

    @property
    def style_draw(self) -> Draw:
        """How the target of an image is drawn from a style."""
        how: Draw = self.params.draw
        return how


class Server(with_exchange.Balanced):
    """Averages models so that every pseudo-domain counts alike."""

    @classmethod
    def robust_problem(cls, kind: Kind, params: Any) -> str | None:
        """Without balance any rule will do."""
        return super().robust_problem(kind, params) if params.balance else None

    def weight(self, upload: Upload) -> float:
        """A client's share in its pseudo-domain, or its number of images."""
        return super().weight(upload) if self.params.balance else float(upload.count)


METHOD = Method(
    name="strata",
    title="Strata",
    paper="none; colours of other clients as in FedRDN and StatMix, the average by unlabelled styles is ours",
    idea="train on the own images in the other sites' colours, and let every style count alike",
    objective="CE(x'); x' = (x − μ) / σ · σ' + μ' by channel with (μ', σ') = (1 − λ)(μ, σ) + λ s, λ ~ U(0, 1), "
    "s drawn from the style of another pseudo-domain",
    server_step="θ ← mean over pseudo-domains j of Σ_{m∈j} (n_m / n_j) θ_m; pseudo-domains: clusters of the styles",
    traffic="down: weights, 12 numbers per pseudo-domain, a cluster index; up: weights, 12 numbers",
    params=Params,
    client=Client,
    server=Server,
)
