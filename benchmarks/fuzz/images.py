"""Images: pixels, or what is wrong with them."""

import warnings

from place import PLACE

from protolith.data.sources.decode import decode

FILE = PLACE / "a.png"
warnings.simplefilter("ignore")


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    found = decode([FILE], 16, "", lambda _: None)
    assert tuple(found.images.shape) == (1, 16, 16, 3)
    assert found.bad.keys() <= {0} and all(isinstance(reason, str) for reason in found.bad.values())
