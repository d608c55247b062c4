"""What stands around a method: the hooks that a layer has, and a list of layers, which is a layer too."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from protolith.data.domain import Split
from protolith.errors import UserError
from protolith.methods.averaging import Pooling
from protolith.methods.base import Around, Context, Spec
from protolith.methods.registry import Method
from protolith.methods.shown import Shown
from protolith.records import Broadcast, Record, Upload


class Layer(Around):
    """One thing that stands around any method. A hook that is not overridden leaves everything as it is.

    A client's hooks depend on their arguments alone; what a layer keeps for itself is the server's, and is in `state`.
    """

    exact_counts = True  # whether a client's counts by class still add up to its number of images

    def refuses(self, method: Method, params: Any, beside: Sequence["Layer"]) -> str | None:
        """Say in one sentence why it cannot stand around this method, or beside these layers; or nothing."""
        return None

    # At a client, besides the four hooks of `Around`.

    def data(self, data: Split, client: int) -> Split:
        """Change what a client trains on."""
        return data

    # At the server.

    def pooling(self) -> Pooling | None:
        """Bring another way to make one of many uploads; or nothing."""
        return None

    def away(self, round_: int) -> set[int]:
        """Name the clients that do not answer in a round; the first is 0."""
        return set()

    def knowledge(self) -> Record:
        """What every client is told."""
        return {}

    def broadcast(self, message: Broadcast, client: int) -> Broadcast:
        """Change what goes to a client."""
        return message

    def schema(self) -> dict[str, Spec]:
        """Say what is in an upload because of this layer."""
        return {}

    def receive(self, uploads: Iterable[Upload]) -> Iterable[Upload]:
        """Change accepted uploads as they stream to the method."""
        return uploads

    def shown(self, shown: Shown) -> Shown:
        """Add what the report may show."""
        return shown

    def state(self) -> Record:
        """What lasts from round to round, under names that begin with the layer's own."""
        return {}

    def load_state(self, state: Record) -> None:
        """Go on from a state."""


class Layers(Layer):
    """The layers of a run, in the order in which an upload meets them on its way."""

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        self.all = tuple(layers)
        self.exact_counts = all(layer.exact_counts for layer in self.all)

    def check(self, method: Method, params: Any) -> None:
        """Refuse what cannot stand together, before anything is begun."""
        for layer in self.all:
            if sentence := layer.refuses(method, params, self.all):
                raise UserError(sentence)

    def data(self, data: Split, client: int) -> Split:
        """What a client trains on, once all layers have changed it."""
        for layer in self.all:
            data = layer.data(data, client)
        return data

    def images(self, images: Tensor, client: Context) -> Tensor:
        """Stored images, once all layers have changed them."""
        for layer in self.all:
            images = layer.images(images, client)
        return images

    def features(self, features: Tensor, client: Context) -> Tensor:
        """Features, once all layers have changed them."""
        for layer in self.all:
            features = layer.features(features, client)
        return features

    def totals(self, sums: Tensor, counts: Tensor, client: Context) -> tuple[Tensor, Tensor]:
        """Sums and counts, once all layers have changed them."""
        for layer in self.all:
            sums, counts = layer.totals(sums, counts, client)
        return sums, counts

    def upload(self, upload: Upload, client: Context) -> Upload:
        """What goes to the server, once all layers have changed it."""
        for layer in self.all:
            upload = layer.upload(upload, client)
        return upload

    def pooling(self) -> Pooling:
        """The last of the layers' ways to make one of many, or the plain means."""
        found = [pooling for layer in self.all if (pooling := layer.pooling()) is not None]
        return found[-1] if found else Pooling()

    def away(self, round_: int) -> set[int]:
        """The clients that any layer keeps away."""
        return {client for layer in self.all for client in layer.away(round_)}

    def knowledge(self) -> Record:
        """What every client is told by any layer."""
        return {name: tensor for layer in self.all for name, tensor in layer.knowledge().items()}

    def broadcast(self, message: Broadcast, client: int) -> Broadcast:
        """What goes to a client, once all layers have changed it."""
        for layer in self.all:
            message = layer.broadcast(message, client)
        return message

    def schema(self) -> dict[str, Spec]:
        """What is in an upload because of any layer."""
        return {name: spec for layer in self.all for name, spec in layer.schema().items()}

    def receive(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """The uploads as they stream to the method, through all layers."""
        for layer in self.all:
            uploads = layer.receive(uploads)
        return iter(uploads)

    def shown(self, shown: Shown) -> Shown:
        """What the report may show, with what all layers add."""
        for layer in self.all:
            shown = layer.shown(shown)
        return shown

    def state(self) -> Record:
        """What lasts of all layers."""
        return {name: tensor for layer in self.all for name, tensor in layer.state().items()}

    def load_state(self, state: Record) -> None:
        """Go on from a state, in all layers."""
        for layer in self.all:
            layer.load_state(state)
