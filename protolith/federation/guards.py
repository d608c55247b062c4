"""What the server accepts: every upload is checked before anything is computed with it."""

from protolith.methods.base import Spec
from protolith.methods.fedavg import Server
from protolith.records import Record, Upload, is_finite


class Guard:
    """The schema of the uploads of a run."""

    def __init__(self, server: Server) -> None:
        self.weights = {
            name: Spec(tuple(tensor.shape), tensor.dtype)
            for name, tensor in server.weights.items()
            if server.expects(name)
        }
        self.knowledge = server.schema()
        self.counts = server.roster.counts

    def problem(self, upload: Upload) -> str | None:
        """Say in one sentence why an upload cannot be used, or nothing."""
        if not 0 <= upload.client < len(self.counts):
            return f"there is no client {upload.client}"
        if not 0 < upload.count <= self.counts[upload.client]:
            return f"claims {upload.count} images, but the client has {self.counts[upload.client]}"
        return self._compare("weight", self.weights, upload.weights) or self._compare(
            "knowledge", self.knowledge, upload.knowledge
        )

    @staticmethod
    def _compare(what: str, specs: dict[str, Spec], record: Record) -> str | None:
        if missing := sorted(specs.keys() - record.keys()):
            return f"{what} '{missing[0]}' is missing"
        if extra := sorted(record.keys() - specs.keys()):
            return f"{what} '{extra[0]}' is not part of this method"
        lengths: dict[str, int] = {}
        finite = is_finite(record)  # all at once; only if it is not so, each tensor is asked
        for name, spec in specs.items():
            if fault := spec.problem(record[name], lengths, finite):
                return f"{what} '{name}' {fault}"
        return None
