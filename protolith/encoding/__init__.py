"""Images through a frozen backbone, once: their features on disk, mapped as decoded images are."""

from protolith.encoding.encode import about_encoded, encode_task
from protolith.encoding.views import Views

__all__ = ["Views", "about_encoded", "encode_task"]
