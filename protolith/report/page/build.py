"""The page as a whole: its parts in their order, and everything that they need inside one file."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

from protolith.errors import UserError
from protolith.files import remove_parts, write_text
from protolith.report.page.across import across
from protolith.report.page.answer import answer
from protolith.report.page.convergence import convergence
from protolith.report.page.cost import cost
from protolith.report.page.failures import failures
from protolith.report.page.html import Html, join, script_json, tag
from protolith.report.page.plots import DARK, Figures
from protolith.report.page.prototypes import prototypes
from protolith.report.page.record import record
from protolith.report.page.space import space
from protolith.report.page.study import Study, read_study
from protolith.report.page.styles import styles
from protolith.runs.directory import versions

Make = Callable[[Study, Figures], Html]


@dataclass(frozen=True)
class Part:
    """A part of the page: its title, what to look for in it, and who makes it."""

    key: str
    title: str
    look: str
    make: Make


PARTS = (
    Part(
        "answer", "The answer", "Look for the method whose mean is highest, and whether it wins by more than ±.", answer
    ),
    Part(
        "rounds",
        "Convergence",
        "Look for curves that still rise (train longer) and for a domain that stays behind the mean.",
        convergence,
    ),
    Part(
        "fails",
        "Where it fails",
        "Look for dark cells: a class that is lost in one domain only is domain shift, one lost everywhere is hard.",
        failures,
    ),
    Part(
        "across",
        "Across domains",
        "Look for bright blocks around the diagonal: models that are good at home only.",
        across,
    ),
    Part(
        "space",
        "The feature space",
        "Look for clouds of one class that hold all domains; by domain, colours should mix. Large stars are the "
        "server's prototypes, diamonds are those of the clients, from their models before averaging.",
        space,
    ),
    Part(
        "prototypes",
        "The prototypes",
        "Look for bright blocks: clients of a domain that agree with each other more than with the rest.",
        prototypes,
    ),
    Part(
        "styles",
        "The styles",
        "Look for groups that hold the sites of one domain: the server found the domains without being told.",
        styles,
    ),
    Part("cost", "Cost", "Look for what a method pays in bytes and seconds for what it gains above.", cost),
    Part("record", "Configuration and events", "Look for anything that failed, was rejected or is missing.", record),
)


@dataclass(frozen=True)
class Page:
    """What was made of a study: the parts, the figures and the thumbnails."""

    title: str
    parts: dict[str, Html]
    figures: dict[str, dict[str, object]] = field(default_factory=dict)
    thumbnails: dict[str, list[str]] = field(default_factory=dict)

    def data(self) -> dict[str, object]:
        """What the page's script draws from."""
        return {"figures": self.figures, "thumbnails": self.thumbnails, "dark": DARK}


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the report of runs, or of directories of runs, as one file."""
    made = render(make_page(read_study(paths)))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_parts(out.parent, out.name)
        write_text(out, made)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}.") from None
    return out


def make_page(study: Study) -> Page:
    """Make all parts."""
    figures = Figures()
    parts = {part.key: part.make(study, figures) for part in PARTS}
    return Page(f"Protolith: {study.name}", parts, figures.held, figures.thumbnails)


def render(page: Page, live: bool = False) -> Html:
    """The whole page as HTML; with `live` it asks its server for news."""
    scripts = [plotly(), script(), *([_file("live.js")] if live else [])]
    data = tag("script", script_json(page.data()), type="application/json", id="data")
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(scripts, live)),
        tag("meta", name="generator", content=f"protolith {versions()['protolith']}"),
        tag("title", page.title),
        tag("style", Html(_file("page.css"))),
    ]
    body = [_header(page), tag("main", *(_part(part, page.parts[part.key]) for part in PARTS))]
    code = [tag("script", Html(held)) for held in scripts]
    tip = tag("div", id="tip", hidden=True, role="status")
    whole = tag("html", tag("head", *head), tag("body", *body, tip, data, *code), lang="en")
    return Html(f"<!doctype html>\n{whole}\n")


def _header(page: Page) -> Html:
    links = [tag("a", part.title, href=f"#{part.key}") for part in PARTS]
    toggle = tag("button", "Dark or light", type="button", id="theme")
    return tag(
        "header",
        tag("h1", page.title),
        tag("nav", *links, toggle, aria_label="Parts of this page"),
        tag("noscript", tag("p", "The figures need JavaScript; tables and pictures do not.", class_="missing")),
    )


def _part(part: Part, content: Html) -> Html:
    inner = tag("div", content, class_="content")
    head = join([tag("h2", part.title), tag("p", part.look, class_="look")])
    return tag("section", head, inner, id=part.key)


def policy(scripts: Sequence[str], live: bool) -> str:
    """Nothing from anywhere, and no script but these: text that got out of hand would still not run."""
    digests = (base64.b64encode(hashlib.sha256(held.encode()).digest()).decode() for held in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    news = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}{news}"


@cache
def plotly() -> str:
    """Plotly's own script, which the page carries with it."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def script() -> str:
    """The page's script."""
    return _file("page.js")


@cache
def _file(name: str) -> str:
    return resources.files("protolith.report.page").joinpath(name).read_text("utf-8")
