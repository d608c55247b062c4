"""Strata: every site trains on its own images in the other sites' styles, and every style counts alike.

It is FedAvg with two layers around it (federation/layers/styles.py and balance.py), whose settings are its options:
`training.style_exchange`, `style_draw` and `style_balance` are the rows of its ablation.
"""

from protolith.methods.base import Params
from protolith.methods.fedavg import Client, Server
from protolith.methods.registry import Method

METHOD = Method(
    name="strata",
    title="Strata",
    paper="none; colours of other clients as in FedRDN and StatMix, the average by unlabelled styles is ours",
    idea="train on the own images in the other sites' colours, and let every style count alike",
    objective="CE(x'); x' = (x − μ) / σ · σ' + μ' by channel with (μ', σ') = (1 − λ)(μ, σ) + λ s, λ ~ U(0, 1), "
    "s drawn from the style of another pseudo-domain",
    server_step="θ ← mean over pseudo-domains j of Σ_{m∈j} (n_m / n_j) θ_m; pseudo-domains: clusters of the styles",
    traffic="down: weights, 12 numbers per pseudo-domain, a cluster index; up: weights, 12 numbers",
    settings={"training": {"style_exchange": 0.8, "style_balance": True}},
    params=Params,
    client=Client,
    server=Server,
)
