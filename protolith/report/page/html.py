"""HTML that cannot be broken out of: whatever is not made here is text."""

import html
import json
import math
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as HTML: escaped, unless it is HTML already."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Several values side by side."""
    return Html(text(between).join(text(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes are written `class_` and `data_name`; those that are None or False are left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in ("img", "meta", "input", "br"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str, numbers: bool = True) -> Html:
    """A table with a header row; the first cell of a row names it, the others are numbers or words.

    It has a box of its own that scrolls where the screen is narrow, and that the keyboard can reach.
    """
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    made = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", top),
        tag("tbody", *body),
        class_="numbers" if numbers else None,
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def select(group: str, label: str, options: Sequence[str]) -> Html:
    """A switch for all figures of a group: option i shows their view i."""
    if len(options) < 2:
        return Html()
    held = [tag("option", option, value=index) for index, option in enumerate(options)]
    return tag("label", label, " ", tag("select", *held, data_group=group), class_="switch")


def plot_text(value: object) -> str:
    """Text inside a figure, where plotly would understand some HTML."""
    return html.escape(str(value), quote=False)


def script_json(value: object) -> Html:
    """JSON for inside a script element: nothing in it can end the element or begin another."""
    written = json.dumps(rounded(value), separators=(",", ":"), allow_nan=False)  # non-ASCII characters are escaped
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return Html(written)


def rounded(value: object) -> object:
    """Numbers with the five digits that a figure needs; what is no number becomes null."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return str(value) if isinstance(value, str) else value
