"""Which sites a result is of: a mean is over sites that were tested in all of its rounds, and the others are named."""

from collections.abc import Sequence

from protolith.runs.result import Absence, Summary
from protolith.runs.round import Round


def always_there(lines: Sequence[Round]) -> list[str]:
    """The sites that were tested in each of these rounds."""
    return [site for site in lines[0].accuracy if all(site in line.accuracy for line in lines)]


def last_shared(lines: Sequence[Round]) -> list[Round]:
    """The last of these rounds, as many as have a site that was tested in all of them."""
    start = next(start for start in range(len(lines)) if always_there(lines[start:]))
    return list(lines[start:])


def absences(lines: Sequence[Round], counted: Sequence[Round], sites: Sequence[str]) -> dict[str, Absence]:
    """The sites that were not tested in all rounds that count: which they missed, and when they were seen last."""
    present = always_there(counted)
    found: dict[str, Absence] = {}
    for site in (site for site in dict.fromkeys(sites) if site not in present):
        seen = [line for line in lines if site in line.accuracy]
        found[site] = Absence(
            last=seen[-1].round if seen else None,
            accuracy=seen[-1].accuracy[site] if seen else None,
            missed=tuple(line.round for line in counted if site not in line.accuracy),
        )
    return found


def sentences(summary: Summary) -> list[str]:
    """What the reader of a result must know of the sites that are not in it."""
    found = []
    for site, facts in summary.absent.items():
        missed = spans(facts.missed)
        last = "it was never tested"
        if facts.last is not None:
            last = f"last tested in round {facts.last}, with {facts.accuracy:.2f} %"
        found.append(f"{site} was not tested in round(s) {missed} and is not in the mean; {last}")
    return found


def spans(rounds: Sequence[int]) -> str:
    """Numbers of rounds in words: those that follow each other as "3 to 5"."""
    starts = [n for n in rounds if n - 1 not in rounds]
    ends = [n for n in rounds if n + 1 not in rounds]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def lacking(line: Round, sites: Sequence[str]) -> list[str]:
    """The sites that a tested round has no accuracy of."""
    return [site for site in sites if line.tested and site not in line.accuracy]


def sites_of(lines: Sequence[Round]) -> list[str]:
    """All sites that were ever tested in a run."""
    return list(dict.fromkeys(site for line in lines for site in line.accuracy))


def with_whole_means(lines: Sequence[Round]) -> list[Round]:
    """The same rounds; those in which not all of the run's sites were tested have no mean."""
    sites = sites_of(lines)
    return [line.model_copy(update={"mean": None}) if lacking(line, sites) else line for line in lines]
