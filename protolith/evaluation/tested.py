"""Which models are tested."""

from enum import StrEnum


class Tested(StrEnum):
    """The models whose accuracy is a run's."""

    GLOBAL = "global"
    TRAINED = "trained"
    AGGREGATED = "aggregated"

    @property
    def words(self) -> str:
        """The same for people."""
        return WORDS[self]


WORDS = {
    Tested.GLOBAL: "the global model",
    Tested.TRAINED: "the clients' own models",
    Tested.AGGREGATED: "the aggregated weights with each client's own BatchNorm statistics",
}
