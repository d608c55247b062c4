"""How much privacy the prototypes have cost so far: (ε, δ) over the rounds, by Google's dp-accounting."""

import math
from collections.abc import Mapping, Sequence
from functools import cache

from protolith.data.protocols import participants
from protolith.errors import UserError
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.hooks import Hook
from protolith.federation.setup import Setup
from protolith.runs.result import Summary
from protolith.runs.round import Json, Round, Spent

REPLACE = math.sqrt(2.0)  # to replace an image changes (sums / clip, counts) by 2, to add or remove one by √2


@cache
def epsilon(noise: float, releases: int, delta: float) -> float:
    """ε of so many Gaussian mechanisms with this noise multiplier, by the package's analytic formula.

    Their composition is exactly one Gaussian mechanism with noise / √releases; no amplification by sampling of
    clients or images is claimed.
    """
    if releases == 0:
        return 0.0
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError:
        raise UserError("privacy.noise needs the accountant: pip install 'protolith[privacy]'.") from None
    return float(get_epsilon_gaussian(noise / math.sqrt(releases), delta))


def refuse_unaccountable(setup: Setup) -> None:
    """Refuse a run whose ε nobody could tell."""
    if setup.privacy.noise > 0:
        epsilon(setup.privacy.noise, 1, setup.privacy.delta)


class Account(Hook):
    """Counts each client's releases, and says what they cost the one with the most."""

    def __init__(self, setup: Setup, clients: Sequence[str], reported: Mapping[str, int] | None = None) -> None:
        self.setup = setup
        self.reported = {} if reported is None else reported  # by sites, which count themselves; it grows
        self.clients = list(clients)
        self.counts = [0] * len(self.clients)
        self.counted = 0  # rounds
        refuse_unaccountable(setup)

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Add what the rounds so far have cost."""
        metrics |= self.after(metrics["round"] - 1, self.reported)

    def after(self, round_: int, reported: Mapping[str, int] | None = None) -> Json:
        """What is to be written down after a round; nothing when there is no noise.

        Who takes part follows from the seed, so that a resumed run counts the same. With the same seed a round that
        is run again sends the same numbers and costs nothing more; a real site draws new noise, and what it reports
        counts where it is more.
        """
        privacy = self.setup.privacy
        if privacy.noise == 0:
            return {}
        for earlier in range(self.counted, round_ + 1):
            for client in participants(len(self.counts), self.setup.protocol, self.setup.seed, earlier)[0]:
                self.counts[client] += 1
        self.counted = max(self.counted, round_ + 1)
        told = reported or {}
        releases = max(max(count, told.get(name, 0)) for name, count in zip(self.clients, self.counts, strict=True))
        return {
            "privacy": {
                "epsilon": epsilon(privacy.noise, releases, privacy.delta),
                "epsilon_replace": epsilon(privacy.noise / REPLACE, releases, privacy.delta),
                "delta": privacy.delta,
                "releases": releases,
            }
        }


def in_the_end(lines: Sequence[Round]) -> Spent | None:
    """What a summary says about privacy, from the last round's line; nothing when there was no noise."""
    last = lines[-1].privacy if lines else None
    return last and last.model_copy(update={"of": "prototypes and class counts alone, not weights"})


def sentences_of(summary: Summary) -> list[str]:
    """What the user is told about privacy at the end of a run."""
    if (told := summary.privacy) is None:
        return []
    spent = f"ε = {told.epsilon:.2f} at δ = {told.delta:g} after {told.releases} releases"
    return [f"privacy of the prototypes: {spent}; the weights are not protected"]
