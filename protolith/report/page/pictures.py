"""Thumbnails as small pictures inside the page."""

import base64
import io

from PIL import Image
from torch import Tensor

from protolith.runs.diagnostics import Tests


class Thumbnails:
    """Pictures by domain and row: an image that several runs show is in the page once."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._known: dict[tuple[str, int], int] = {}

    def index(self, tests: Tests, place: int) -> int | None:
        """The number of an image's picture; None where the run has not saved it."""
        key = (tests.domains[int(tests.domain[place])], int(tests.row[place]))
        if key not in self._known:
            found = (tests.shown == place).nonzero().flatten()
            if not len(found):
                return None
            self._known[key] = len(self.addresses)
            self.addresses.append(data_address(tests.thumbnails[int(found[0])]))
        return self._known[key]

    def address(self, tests: Tests, place: int) -> str | None:
        """The picture itself, as an address that needs no network."""
        index = self.index(tests, place)
        return None if index is None else self.addresses[index]


def data_address(pixels: Tensor) -> str:
    """An image [h, w, 3] as WebP in a data address."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, "WEBP", quality=70, method=2)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
