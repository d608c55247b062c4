"""Privacy of prototypes: clipped features and noise; what it cannot protect is refused, never sent unprotected."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from protolith.federation.layers.base import Layer
from protolith.federation.layers.styles import StylesLayer
from protolith.methods import with_prototypes
from protolith.methods.base import Context
from protolith.methods.registry import Method, all_methods
from protolith.prototypes.privacy import Privacy, clipped, private_totals, secret_noise, seeded_noise


class PrivacyLayer(Layer):
    """Bounds what an image can change in the class means that a client sends, and hides it in noise."""

    def __init__(self, privacy: Privacy, secret: bool) -> None:
        self.privacy = privacy
        self.secret = secret  # at a real site: noise that no seed can give again
        self.exact_counts = privacy.noise == 0 and privacy.least == 1

    def refuses(self, method: Method, params: Any, beside: Sequence[Layer]) -> str | None:
        """Refuse a method whose uploads hold more of the images than clipped class sums (and the weights)."""
        if not covers(method) or any(isinstance(layer, StylesLayer) for layer in beside):
            able = ", ".join(name for name, other in all_methods().items() if covers(other))
            why = "sends no prototypes, and weights are not protected"
            if issubclass(method.client, with_prototypes.Client):
                why = "sends more than class means, or the class means of a network that stays with the client"
            return f"privacy is not for method '{method.name}', which {why}; it is for {able}."
        if self.privacy.noise > 0 and params.proto_pass != "eval_pass":
            return (
                "privacy.noise needs params.proto_pass = 'eval_pass': in a training pass BatchNorm lets an image "
                "change the features of all others in its batch, so that clipping does not bound what it changes."
            )
        return None

    def features(self, features: Tensor, client: Context) -> Tensor:
        """Scale long features down before they are added up."""
        return clipped(features, self.privacy.clip)

    def totals(self, sums: Tensor, counts: Tensor, client: Context) -> tuple[Tensor, Tensor]:
        """Add the noise, and leave out classes with too few images."""
        draw = secret_noise if self.secret else seeded_noise(client.seed, "privacy")
        return private_totals(sums, counts, self.privacy, draw)


def covers(method: Method) -> bool:
    """Tell whether all that a method sends besides its weights is class means that pass through the hooks above.

    The schema is what the guard lets pass, so that nothing else can be sent; and the functions through which the
    means go must be those of `with_prototypes`. A network that stays with its client is not covered.
    """
    ours, theirs = with_prototypes.Client, method.client
    way = ("pass_over_data", "_collect", "prototypes", "upload")
    return (
        issubclass(theirs, ours)
        and all(getattr(theirs, name) is getattr(ours, name) for name in way)
        and method.server.schema is with_prototypes.Server.schema
        and method.server.counts_by != "nothing"
    )
