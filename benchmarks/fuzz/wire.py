"""What comes over the network from a site: arrays of bytes, records in them, facts."""

import numpy as np

from protolith.files import parse_json
from protolith.flower.carrier import plain_bytes
from protolith.flower.wire import SiteFacts
from protolith.records import BadRecord, from_bytes


def one(data: bytes) -> None:
    try:
        inner = plain_bytes(data)
        assert len(inner) < len(data)
        from_bytes(inner)
    except (ValueError, BadRecord):
        pass
    _facts(data)


def _facts(data: bytes) -> None:
    try:
        values = parse_json(data)
        if isinstance(values, dict):
            facts = SiteFacts.from_plain(values)
            assert facts.name.isprintable() and np.isfinite(facts.train + facts.test)
    except ValueError:
        pass
