"""Part 3: where it fails: the worst domain, classes by domain, and the most confident mistakes."""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from protolith.evaluation.accuracy import spread, worst
from protolith.report.page.html import Html, join, select, table, tag
from protolith.report.page.pictures import Thumbnails
from protolith.report.page.plots import Figures, heat_map, swatch
from protolith.report.page.study import Setting, Study
from protolith.runs.diagnostics import Tests
from protolith.runs.run import Run

GALLERY = 8  # mistakes of a domain
METHODS = 12  # more galleries than this would only make the page heavy


def failures(study: Study, figures: Figures) -> Html:
    """Worst domains, a map of classes and a gallery for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    level, below = ("h4", "h5") if named else ("h3", "h4")
    parts: list[object] = [tag("h3", setting.title) if named else "", _worst(setting)]
    tested = {label: found for label, runs in setting.methods.items() if (found := [r for r in runs if r.tests])}
    if tested:
        group = f"{setting.key}-fails"
        parts += [
            tag(level, "Classes by domain, and the most confident mistakes"),
            select(group, "Method", list(tested)),
            _class_map(setting, tested, figures, group),
            _galleries({label: runs[0] for label, runs in list(tested.items())[:METHODS]}, group, below),
        ]
    if lacking := [label for label in setting.methods if label not in tested]:
        words = f"No predictions were saved by {', '.join(lacking)}: not finished, or run without diagnostics."
        parts.append(tag("p", words, class_="missing"))
    return join(parts)


def _worst(setting: Setting) -> Html:
    """The weakest domain of each method, as a table."""
    rows = []
    for label, runs in setting.methods.items():
        found = [run.finished.accuracy for run in runs if run.finished]
        if found:
            means = {domain: statistics.fmean(f[domain] for f in found if domain in f) for domain in found[0]}
            name, value = worst(means)
            colour = swatch(setting.looks[label].colour)
            rows.append([join([colour, label]), name, f"{value:.2f}", f"{spread(means):.2f}", _worst_class(runs)])
    if not rows:
        return Html()
    head = ["method", "worst domain", "accuracy there", "best minus worst", "worst class of all"]
    return table(head, rows, "The weakest domain and class of each method, in per cent")


def _worst_class(runs: Sequence[Run]) -> str:
    found = [run.tests for run in runs if run.tests]
    if not found:
        return "–"
    rates, counts = class_accuracy(found)
    overall = (rates.nan_to_num() * counts).sum(0) / counts.sum(0).clamp(min=1)
    index = int(torch.where(counts.sum(0) > 0, overall, torch.inf).argmin())
    return f"{found[0].classes[index]} ({overall[index]:.1f})"


def class_accuracy(found: Sequence[Tests]) -> tuple[Tensor, Tensor]:
    """Per cent right by domain and class [D, K] over all seeds (NaN where there are no images), and the images."""
    domains, classes = len(found[0].domains), len(found[0].classes)
    counts = torch.zeros(domains, classes)
    right = torch.zeros(domains, classes)
    for tests in found:
        where = tests.domain.long() * classes + tests.label.long()
        counts += torch.bincount(where, minlength=domains * classes).view(domains, classes)
        hits = where[tests.label == tests.predicted]
        right += torch.bincount(hits, minlength=domains * classes).view(domains, classes)
    return 100.0 * right / counts, counts


def _class_map(setting: Setting, tested: dict[str, list[Run]], figures: Figures, group: str) -> Html:
    views = []
    for runs in tested.values():
        held = [run.tests for run in runs if run.tests]
        rates, _ = class_accuracy(held)
        domains, classes = held[0].domains, held[0].classes
        values = [[None if value != value else value for value in row] for row in rates.tolist()]
        wide = len(classes) <= 20
        if not wide:  # many classes go downward
            values, domains, classes = [list(row) for row in zip(*values, strict=True)], classes, domains
        views.append(heat_map(values, classes, domains, limits=(0.0, 100.0), unit=" %"))
    first = next(iter(tested.values()))[0].tests
    assert first is not None
    lines = len(first.domains) if len(first.classes) <= 20 else len(first.classes)
    height = min(2000, 110 + 44 * lines if lines <= 20 else 110 + 14 * lines)
    words = f"Accuracy in per cent by domain and class, of {first.of}"
    note = "" if first.images == len(first.label) else f" Of {len(first.label)} of {first.images} test images."
    return join(
        [
            figures.add(f"{setting.key}-classes", f"{words}.", views, group=group, height=height),
            tag("p", f"{words}, at the end of the run, over all seeds.{note}", class_="note"),
        ]
    )


def _galleries(tested: dict[str, Run], group: str, level: str) -> Html:
    pictures, parts = Thumbnails(), []
    for index, (label, run) in enumerate(tested.items()):
        assert run.tests is not None
        domains = [_domain(run.tests, domain, pictures, level) for domain in range(len(run.tests.domains))]
        title = tag("p", f"{label}, seed {run.config.seed}: shown as what it is → what it was taken for (confidence)")
        parts.append(tag("div", title, *domains, data_view=index, data_group=group, hidden=index > 0))
    return join(parts)


def _domain(tests: Tests, domain: int, pictures: Thumbnails, level: str) -> Html:
    """The mistakes of one domain of which the network was most certain."""
    wrong = ((tests.predicted != tests.label) & (tests.domain == domain)).nonzero().flatten()
    order = torch.argsort(tests.confidence[wrong].float(), descending=True, stable=True)
    all_ = int((tests.domain == domain).sum())
    shown = [_mistake(tests, int(place), pictures) for place in wrong[order[:GALLERY]]]
    return join(
        [
            tag(level, f"{tests.domains[domain]}: {len(wrong)} of {all_} wrong"),
            tag("ul", *shown, class_="gallery") if shown else tag("p", "No mistake among these.", class_="note"),
        ]
    )


def _mistake(tests: Tests, place: int, pictures: Thumbnails) -> Html:
    true, taken = (tests.classes[int(held[place])] for held in (tests.label, tests.predicted))
    words = f"{true} → {taken} ({100 * float(tests.confidence[place]):.0f} %)"
    image = tag(
        "img", src=pictures.address(tests, place), alt=f"a {true} that was taken for {taken}", width=64, height=64
    )
    return tag("li", image, tag("span", words))
