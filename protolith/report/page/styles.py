"""Part 7: the styles that sites exchange, which are mean colours and contrasts."""

from torch import Tensor

from protolith.report.page.html import Html, join, table, tag
from protolith.report.page.plots import Figures
from protolith.report.page.study import Setting, Study
from protolith.runs.diagnostics import Made
from protolith.runs.run import Run

MOST = 60  # sites of a group that are shown


def styles(study: Study, figures: Figures) -> Html:
    """The groups of styles with the colours of their sites, for each setting."""
    parts = [_setting(setting, len(study.settings) > 1) for setting in study.settings if _held(setting)]
    if not parts:
        words = "No styles were exchanged in these runs: Strata does it, and any method with style_exchange."
        return tag("p", words, class_="missing")
    return join(parts)


def styles_of(run: Run) -> Made | None:
    """The last round whose exchanged styles were saved."""
    return next((made for made in reversed(run.shown) if made.shown.group_colours is not None), None)


def _held(setting: Setting) -> dict[str, Run]:
    return setting.first_with(styles_of)


def _setting(setting: Setting, named: bool) -> Html:
    title = tag("h3", setting.title) if named else ""
    words = (
        "A square is the mean colour of a site's images, or of a group's. The spread is how far a group's images "
        "differ in colour, in grey levels of 255. The server groups sites by their styles and knows no domains."
    )
    tables = [_method(label, run) for label, run in _held(setting).items()]
    return join([title, *tables, tag("p", words, class_="note")])


def _method(label: str, run: Run) -> Html:
    """A row for each group: its own colour, how many sites of each true domain it has, and the sites."""
    made = styles_of(run)
    assert made is not None
    colours, groups, whole = made.shown.colours, made.shown.colour_groups, made.shown.group_colours
    assert colours is not None and groups is not None and whole is not None
    domains = list(dict.fromkeys(domain for _, domain in made.everyone))
    rows = []
    for number, style in enumerate(whole):
        members = (groups == number).nonzero().flatten().tolist()
        lives = [made.everyone[member][1] for member in members]
        sites = [join([colour(colours[member]), made.everyone[member][0]]) for member in members[:MOST]]
        more = [f"and {len(members) - MOST} more"] if len(members) > MOST else []
        counts = (lives.count(domain) or "·" for domain in domains)
        name = join([colour(style), f"group {number + 1}"])
        rows.append([name, f"{255 * float(style[6:9].mean()):.0f}", *counts, join([*sites, *more], " ")])
    caption = f"Styles of {label}, round {made.round}: groups, and their sites by true domain"
    return table(["group", "spread", *domains, "sites"], rows, caption, numbers=False)


def colour(style: Tensor) -> Html:
    """A square in the mean colour of a style."""
    mean = ",".join(str(round(255 * float(channel))) for channel in style[:3])
    return tag("span", class_="colour", style=f"background:rgb({mean})", title=f"rgb({mean})", role="img")
