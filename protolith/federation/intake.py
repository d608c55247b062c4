"""What becomes of a round's uploads before the server computes with them, and what is counted on the way."""

import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from protolith.federation.coordinator import Coordinator
from protolith.federation.engine import Result
from protolith.federation.guards import Guard
from protolith.federation.screening import Flag, Screen
from protolith.records import Broadcast, Upload


class Intake:
    """Checks the uploads of a round, and counts bytes, images, losses and faults while they stream in."""

    def __init__(self, coordinator: Coordinator, awaited: Collection[int]) -> None:
        self.coordinator = coordinator
        self.guard = Guard(coordinator.server, awaited, coordinator.layers)
        self.screen = Screen(coordinator.setup.guard, coordinator.server.origin())
        self.rejected: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._bytes_down = 0
        self._bytes_up = 0
        self._images = 0
        self._losses: dict[str, float] = {}  # sums over the images of the clients that have the term
        self._behind: dict[str, int] = {}  # how many images these are

    def count_down(self, message: Broadcast) -> None:
        """Count a broadcast."""
        with self._lock:
            self._bytes_down += message.nbytes

    def checked(self, results: Iterable[Result]) -> Iterator[Result]:
        """Pass on what fits the schema, and take down its norms; count and name the rest."""
        for result in results:
            self._bytes_up += result.upload.nbytes
            if reason := self.guard.problem(result.upload):
                self._reject(result.upload.client, reason)
                continue
            self.screen.measure(result.upload)
            yield result
            del result  # before the next one comes, so that memory holds one

    def screened(self, results: Iterator[Result]) -> Iterator[Result]:
        """Clip or drop what is far beyond the others, where the run asks for that; it then holds a round's uploads."""
        return results if self.screen.settings.norm == "flag" else self._screened(list(results))

    def _screened(self, results: list[Result]) -> Iterator[Result]:
        flags = self.screen.flags()
        for result in results:
            mine = [flag for flag in flags if flag.client == result.upload.client]
            if mine and self.screen.settings.norm == "drop":
                self._reject(result.upload.client, f"the norm of its {mine[0].what} has z = {mine[0].z:.1f}")
            else:
                yield replace(result, upload=self.screen.clip(result.upload, mine)) if mine else result

    def _reject(self, client: int, reason: str) -> None:
        self.rejected.append({"client": self.coordinator.strike(client), "reason": reason})

    def add_losses(self, upload: Upload) -> None:
        """Count what an accepted upload says of its loss terms."""
        self._images += upload.count
        for name, value in upload.metrics.items():
            self._losses[name] = self._losses.get(name, 0.0) + value * upload.count
            self._behind[name] = self._behind.get(name, 0) + upload.count

    def metrics(self) -> dict[str, Any]:
        """What was counted."""
        return {
            "loss": {name: total / self._behind[name] for name, total in self._losses.items()},
            "bytes_down": self._bytes_down,
            "bytes_up": self._bytes_up,
            "images": self._images,
            "rejected": self.rejected,
            "flagged": [self._described(flag) for flag in self.screen.flags()],
        }

    def _described(self, flag: Flag) -> dict[str, Any]:
        return {"client": self.coordinator.names([flag.client])[0], "what": flag.what, "z": round(flag.z, 2)}
