"""Top-1 accuracy: of images, of test sets, of domains."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from protolith.data.protocols import TestSet
from protolith.evaluation.measures import ACCURACY, Counts, Measure, added, results

CHUNK = 512  # test images in one job; fixed, so that results do not depend on the number of workers


@dataclass(frozen=True)
class Chunk:
    """A stretch of a test set: the unit of evaluation work."""

    test: int
    start: int
    stop: int


def chunks(tests: Sequence[TestSet]) -> list[Chunk]:
    """Cut all test sets into chunks."""
    return [
        Chunk(index, start, min(start + CHUNK, len(test.rows)))
        for index, test in enumerate(tests)
        for start in range(0, len(test.rows), CHUNK)
    ]


def by_test(tests: Sequence[TestSet], pieces: Sequence[Chunk], counts: Iterable[Counts]) -> dict[str, Counts]:
    """The counts of each test set from those of its pieces, added in their order."""
    found: list[list[Counts]] = [[] for _ in tests]
    for piece, counted in zip(pieces, counts, strict=True):
        found[piece.test].append(counted)
    return {test.name: added(parts) for test, parts in zip(tests, found, strict=True)}


def domain_means(tests: Sequence[TestSet], accuracy: Mapping[str, float]) -> dict[str, float]:
    """Average the accuracies of a domain's test sets, for every domain (in per cent, as they come)."""
    by_domain: dict[str, list[float]] = {}
    for test in tests:
        if test.name in accuracy:
            by_domain.setdefault(test.domain, []).append(accuracy[test.name])
    return {domain: sum(values) / len(values) for domain, values in by_domain.items()}


def mean(accuracy: Mapping[str, float]) -> float:
    """The unweighted mean over domains."""
    return sum(accuracy.values()) / len(accuracy)


def own_and_across(
    tests: Sequence[TestSet], client_domains: Mapping[int, str], accuracy: Mapping[int, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Summarise the clients' own models: on their own domain, and on the others'.

    Own: for every domain, the mean over the clients that live there (over all clients when none does, as for
    an unseen domain); a client with a test set of its own is tested on that one alone. Across: for every
    domain, the mean over the clients that live elsewhere.
    """
    own: dict[str, list[float]] = {}
    across: dict[str, list[float]] = {}
    for client, values in accuracy.items():
        for test in (test for test in tests if test.name in values):
            if is_home(test, client, client_domains):
                own.setdefault(test.domain, []).append(values[test.name])
            if client_domains[client] != test.domain:
                across.setdefault(test.domain, []).append(values[test.name])
    return (
        {domain: sum(values) / len(values) for domain, values in own.items()},
        {domain: sum(values) / len(values) for domain, values in across.items()},
    )


def is_home(test: TestSet, client: int, client_domains: Mapping[int, str]) -> bool:
    """Tell whether a test set is one that a client's own model is for; an unseen domain is one for everybody."""
    if test.domain not in client_domains.values():
        return True
    return client_domains[client] == test.domain and test.owner in (None, client)


def of_global(measures: Sequence[Measure], tests: Sequence[TestSet], counts: Mapping[str, Counts]) -> dict[str, object]:
    """What a round's line says of the global model: every measure by domain, their mean, and by images."""
    held = [counts[test.name] for test in tests if test.name in counts]
    return _described(measures, held, lambda measure: domain_means(tests, results(measure, counts)))


def of_clients(
    measures: Sequence[Measure],
    tests: Sequence[TestSet],
    client_domains: Mapping[int, str],
    counts: Mapping[int, Mapping[str, Counts]],
) -> dict[str, object]:
    """What a round's line says of the clients' own models, each at home."""
    held = [
        own[test.name]
        for client, own in counts.items()
        for test in tests
        if test.name in own and is_home(test, client, client_domains)
    ]

    def at_home(measure: Measure) -> dict[str, float]:
        found = {client: results(measure, own) for client, own in counts.items()}
        return own_and_across(tests, client_domains, found)[0]

    return _described(measures, held, at_home)


def _described(
    measures: Sequence[Measure], held: Sequence[Counts], by_domain: Callable[[Measure], dict[str, float]]
) -> dict[str, object]:
    """Accuracy under its own names, as in every round's line; other measures beside it."""
    found: dict[str, dict[str, object]] = {}
    total = added(held)
    for measure in measures:
        domains, whole = by_domain(measure), total.get(measure.name)
        if not domains or whole is None:
            continue
        found[measure.name] = {"domains": domains, "mean": mean(domains), "by_images": measure.result(whole)}
        if (classes := measure.by_class(whole)) is not None:
            found[measure.name]["classes"] = classes
    if not (accuracy := found.pop(ACCURACY, None)):
        return {}
    line = {"accuracy": accuracy["domains"], "mean": accuracy["mean"], "by_images": accuracy["by_images"]}
    return {**line, "measures": found} if found else line


def worst(accuracy: Mapping[str, float]) -> tuple[str, float]:
    """The domain with the lowest accuracy, and that accuracy."""
    return min(accuracy.items(), key=lambda item: item[1])


def spread(accuracy: Mapping[str, float]) -> float:
    """How far the best domain is above the worst."""
    return max(accuracy.values()) - min(accuracy.values())


class Progress(Protocol):
    """What a round has come to, and what it cost."""

    @property
    def round(self) -> int:
        """Its number."""

    @property
    def mean(self) -> float | None:
        """The mean accuracy, where it was tested."""

    @property
    def bytes_down(self) -> int:
        """Bytes that were sent to the clients."""

    @property
    def bytes_up(self) -> int:
        """Bytes that the clients sent."""


def reached(lines: Sequence[Progress], target: float) -> tuple[int, int] | None:
    """After how many rounds, and bytes down and up, the mean accuracy was at least the target for the first time."""
    sent = 0
    for line in lines:
        sent += line.bytes_down + line.bytes_up
        if line.mean is not None and line.mean >= target:
            return line.round, sent
    return None
