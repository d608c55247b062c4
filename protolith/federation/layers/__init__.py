"""What stands around any method: privacy, exchanged styles, attacks, robust rules, balance; a file each.

A method knows none of them. Its client asks `context.layers` (methods/base.py), its server asks `pooling`
(methods/averaging.py), and the round (federation/rounds.py) passes broadcasts and uploads through them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protolith.federation.layers.attack import AttackLayer
from protolith.federation.layers.balance import BalanceLayer
from protolith.federation.layers.base import Layer as Layer
from protolith.federation.layers.base import Layers
from protolith.federation.layers.privacy import PrivacyLayer
from protolith.federation.layers.robust import RobustLayer
from protolith.federation.layers.styles import StylesLayer

if TYPE_CHECKING:
    from protolith.federation.setup import Setup


def layers_of(setup: "Setup", images: Sequence[int], classes: int, at_site: bool = False) -> Layers:
    """The layers that a run asks for; `images` are the clients' numbers of images.

    The order is that in which an upload meets them on its way from the method at a client to the method at the server,
    and no setting: noise comes before whatever a liar makes of it, and styles are told before models are weighed.
    """
    training, attack, seed = setup.training, setup.attack, setup.seed
    styles = StylesLayer(training.style_exchange, training.style_draw, images)
    asked = (
        (setup.privacy.asked, PrivacyLayer(setup.privacy, at_site)),
        (training.style_exchange > 0 or training.style_balance, styles),
        (attack.kind != "none", AttackLayer(attack, seed, len(images), classes)),
        (setup.robust != "mean", RobustLayer(setup.robust, setup.robust_share)),
        (training.style_balance, BalanceLayer(styles)),
    )
    return Layers([layer for wanted, layer in asked if wanted])
