"""Manifests, as CSV and as parquet: a list of files inside the folder, or one sentence."""

import os

from place import PLACE

from protolith.data.sources.manifest import read_manifest
from protolith.errors import UserError

FOLDER = PLACE / "images"
FOLDER.mkdir(exist_ok=True)
if not (FOLDER / "link").is_symlink():
    (FOLDER / "link").symlink_to("/")


def one(data: bytes) -> None:
    for name in ("m.csv", "m.parquet"):
        (FOLDER / name).write_bytes(data)
        try:
            found = read_manifest(FOLDER / name)
        except UserError as error:
            assert len(str(error)) < 500_000
            continue
        inside = os.path.realpath(FOLDER) + os.sep
        assert all(os.path.realpath(row.picture).startswith(inside) for row in found.rows)
