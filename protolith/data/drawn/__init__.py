"""Domains that are drawn and not read: those of the embedded task `mini`, and `syn*`, which stands in for SYN.

What draws is imported when something is drawn: it needs scikit-learn.
"""

from protolith.data.sources.found import Found, decoded_rows
from protolith.data.sources.inventory import Row

STAND_IN = "*"  # ends the name of a domain that stands in for another


def stands_in(drawn: str) -> bool:
    """Tell whether what is drawn only stands in for images that were not found."""
    return drawn.endswith(STAND_IN)


def find(drawn: str, domain: str, size: int) -> Found:
    """Describe a domain that is drawn here."""
    if drawn == "mini":
        return _mini(domain)
    from protolith.data.drawn import syn

    def rows(classes: tuple[str, ...]) -> list[Row]:
        return decoded_rows(syn.render(size), classes)

    where = "drawn by Protolith (the real SYN was not found)"
    note = "syn*: drawn by Protolith, because the SYN data set (Roy et al. 2018) was not found"
    return Found(syn.NAME, f"syn {syn.VERSION}", where, rows, True, notes=(note,))


def _mini(domain: str) -> Found:
    from protolith.data.drawn import mini

    def rows(classes: tuple[str, ...]) -> list[Row]:
        return decoded_rows(mini.draw(domain), classes)

    return Found(domain, f"mini {mini.VERSION}", "embedded", rows, True)
