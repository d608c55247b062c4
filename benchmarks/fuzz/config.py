"""Configuration: settings, or one sentence. Plug-ins are left out: they are code, and running them is their purpose."""

import contextlib

from place import PLACE

from protolith.errors import UserError
from protolith.runs.config import parse_set, read_toml, resolve, to_toml

FILE = PLACE / "c.toml"


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        tree = read_toml(FILE)
        tree.pop("plugins", None)
        config = resolve([tree])
        FILE.write_text(to_toml(config))
        assert resolve([read_toml(FILE)]) == config
    except UserError as error:
        assert len(str(error)) < 20_000
    with contextlib.suppress(UserError):
        parse_set(data.decode("utf-8", "replace").splitlines(), "fedavg")
