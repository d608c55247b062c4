"""Domains that are drawn and not read: those of the embedded task `mini`, and `syn*`, which stands in for SYN.

What draws is imported when it is asked for: a task from files has no use for it.
"""

from protolith.data.sources.found import Found, decoded_rows

STAND_IN = "*"  # ends the name of a domain that stands in for another


def stands_in(drawn: str) -> bool:
    """Tell whether what is drawn only stands in for images that were not found."""
    return drawn.endswith(STAND_IN)


def find(drawn: str, domain: str, size: int) -> Found:
    """Describe a domain that is drawn here."""
    from protolith.data.drawn import mini, syn

    if drawn == "mini":
        version = f"mini {mini.VERSION}"
        return Found(domain, version, "embedded", lambda classes: decoded_rows(mini.draw(domain), classes), True)
    where = "drawn by Protolith (the real SYN was not found)"
    note = "syn*: drawn by Protolith, because the SYN data set (Roy et al. 2018) was not found"
    version = f"syn {syn.VERSION}"
    return Found(syn.NAME, version, where, lambda classes: decoded_rows(syn.render(size), classes), True, notes=(note,))
