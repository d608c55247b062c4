"""What there is to know about images of one's own before training: counts, sizes, problems, and a suggestion."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from protolith.data.own import Own, faults, lacking, list_own, read_own, relabelled
from protolith.data.sources.found import Progress, listed, silent
from protolith.data.tasks import folder_of
from protolith.use.own_run import typed
from protolith.use.suggest import Suggestion, amounts_of, suggest
from protolith.use.text import columns, predict_line, span
from protolith.use.timing import Estimate, estimate

SMALL_CLASS = 10  # images of a class at a site; below, its accuracy there says little
UNEVEN = 10  # times as many images of one class as of another
DECODED_AT = 32  # pixels; enough to look for duplicates
SHOWN = 10  # problems of one kind, so that the suggestion stays on the screen; --json has them all
WIDE = 10  # columns that still fit a screen
FIRST = Path("runs/first")  # where the line to type next puts its run


@dataclass(frozen=True)
class SiteSizes:
    """The sizes of a site's images as they are in the files: width × height."""

    site: str
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Check:
    """The result of a check. `faults` make a run impossible, `problems` make it worse."""

    path: str
    own: Own
    sizes: tuple[SiteSizes, ...]
    faults: tuple[str, ...]
    problems: tuple[str, ...]
    suggestion: Suggestion | None
    estimate: Estimate | None = None

    def text(self) -> str:
        """Everything, for people."""
        parts = [self._heading(), self._counts(), self._sizes(), *self._lists(), self._advice()]
        return "\n\n".join(part for part in parts if part)

    def plain(self) -> dict[str, object]:
        """Everything, for other programs."""
        return {
            "path": self.path,
            "classes": list(self.own.classes),
            "sites": {
                domain.name: {
                    part: dict(zip(self.own.classes, split.counts(len(self.own.classes)), strict=True))
                    for part, split in (("train", domain.train), ("test", domain.test))
                }
                for domain in self.own.domains
            },
            "sizes": [asdict(sizes) for sizes in self.sizes],
            "unreadable": [asdict(bad) for bad in self.own.bad],
            "duplicates": [list(pair) for pair in self.own.duplicates],
            "relabelled": [list(files) for files in relabelled(self.own)],
            "faults": list(self.faults),
            "problems": list(self.problems),
            "suggestion": self._plain_suggestion(),
        }

    def _heading(self) -> str:
        count = sum(len(domain.train) + len(domain.test) for domain in self.own.domains)
        return f"{self.own.name}: {count:,} images, {len(self.own.sites)} site(s), {len(self.own.classes)} class(es)"

    def _counts(self) -> str:
        names, classes = [domain.name for domain in self.own.domains], self.own.classes
        counts = [
            [f"{train}+{test}" for train, test in zip(d.train.counts(n), d.test.counts(n), strict=True)]
            for d, n in ((domain, len(classes)) for domain in self.own.domains)
        ]
        total = [f"{len(domain.train):,}+{len(domain.test):,}" for domain in self.own.domains]
        rows = [["train+test", *classes, "all"]]
        rows += [[name, *row, whole] for name, row, whole in zip(names, counts, total, strict=True)]
        if len(classes) > WIDE and len(names) <= WIDE:
            rows = [list(row) for row in zip(*rows, strict=True)]
        return columns(rows)

    def _sizes(self) -> str:
        rows = [["pixels", "smallest", "median", "largest"]]
        rows += [
            [s.site, *("×".join(map(str, size)) for size in (s.smallest, s.median, s.largest))] for s in self.sizes
        ]
        return columns(rows)

    def _lists(self) -> list[str]:
        return [
            "\n".join([f"{title}:", *(f"  {item}" for item in items)])
            for title, items in (("a run is not possible", self.faults), ("problems", self.problems))
            if items
        ]

    def _advice(self) -> str:
        if self.suggestion is None:
            return ""
        said = f"suggestion: {self.suggestion.words()}"
        if self.estimate:
            did = "to encode an image, once" if self.suggestion.pretrained else "of training for an image, on one core"
            each = f"{1000 * self.estimate.per_image:.1f} ms {did}"
            said += f"; about {span(self.estimate.seconds)} on this machine (measured: {each})"
        skip = " --skip-bad" if self.own.bad else ""
        return "\n".join(
            [
                said,
                "next, which takes these settings wherever you set none yourself:",
                f"  protolith run --task {typed(self.path)} --out {FIRST}{skip}",
                "and then, with images that are new:",
                f"  {predict_line(FIRST)}",
            ]
        )

    def _plain_suggestion(self) -> dict[str, object] | None:
        if self.suggestion is None:
            return None
        return {**asdict(self.suggestion), **(asdict(self.estimate) if self.estimate else {})}


def check(path: str | Path, progress: Progress = silent, measure: bool = True) -> Check:
    """Look at images of one's own; nothing that is wrong with them is an error here."""
    found = list_own(folder_of(str(path)))
    own = read_own(found, DECODED_AT, progress)
    wrong, suggestion, measured = faults(own), None, None
    if not wrong:
        amounts = amounts_of(found)  # as a run finds them, which decodes nothing before it says what it takes
        suggestion = suggest(amounts)
        if measure:
            progress("measuring a few steps")
            measured = estimate(suggestion, amounts)
    return Check(str(path), own, _sizes(own), tuple(wrong), tuple(_problems(own)), suggestion, measured)


def _sizes(own: Own) -> tuple[SiteSizes, ...]:
    found = []
    for site in own.sites:
        if len(site.sizes):
            order = site.sizes[torch.argsort(site.sizes.prod(dim=1), stable=True)]
            chosen = [(int(order[i, 0]), int(order[i, 1])) for i in (0, len(order) // 2, -1)]
            found.append(SiteSizes(site.domain.name, *chosen))
    return tuple(found)


def _problems(own: Own) -> list[str]:
    found = list(own.notes)
    found += _some([f"'{bad.file}' {bad.reason}" for bad in own.bad], "unreadable files")
    found += _some([f"one picture under several labels: {listed(files)}" for files in relabelled(own)], "such pictures")
    same = [f"'{test}' (test) looks the same as '{train}' (training)" for test, train in own.duplicates]
    found += _some(same, "pairs that look the same")
    found += [f"site '{site}' has no training image of {listed(names)}" for site, names in lacking(own).items()]
    for domain in own.domains:
        counts = [
            a + b for a, b in zip(*(p.counts(len(own.classes)) for p in (domain.train, domain.test)), strict=True)
        ]
        small = [f"{name} ({n})" for name, n in zip(own.classes, counts, strict=True) if 0 < n < SMALL_CLASS]
        if small:
            found.append(f"site '{domain.name}' has fewer than {SMALL_CLASS} images of: {', '.join(small)}")
        held = [count for count in counts if count]
        if held and max(held) >= UNEVEN * min(held):
            found.append(
                f"site '{domain.name}' has {max(held) // min(held)} times as many images of one class as of another: "
                "--set class_weights=true counts them alike"
            )
    return found


def _some(items: list[str], what: str) -> list[str]:
    more = [f"and {len(items) - SHOWN:,} more {what}; --json lists all"] if len(items) > SHOWN else []
    return items[:SHOWN] + more
