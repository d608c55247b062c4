"""How many clients each domain has in the papers' experiments."""

# FPL prints 3/7/6/4 for Digits, but its numbers belong to 6/4/3/7, the draw of its code at seed 0;
# I2PFL prints 6/4/3/7. Office and PACS follow from the same draw.
ALLOCATIONS: dict[str, dict[str, int]] = {
    "mini-uneven": {"pen": 3, "photo": 2, "print": 1, "street": 2},
    "digits-papers": {"mnist": 6, "usps": 4, "svhn": 3, "syn": 7},
    "digits-fpl-printed": {"mnist": 3, "usps": 7, "svhn": 6, "syn": 4},
    "digits-fedapc": {"mnist": 2, "usps": 1, "svhn": 2, "syn": 3},
    "digits-equal": {"mnist": 5, "usps": 5, "svhn": 5, "syn": 5},
    "digit5-fedcode": {"mnist": 5, "usps": 5, "svhn": 3, "syn": 3, "mnistm": 4},
    "office10-papers": {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4},
    "office10-fedapc": {"caltech": 3, "amazon": 2, "webcam": 2, "dslr": 1},
    "office10-equal": {"caltech": 3, "amazon": 3, "webcam": 3, "dslr": 3},
    "pacs-papers": {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4},
    "pacs-fedcode": {"photo": 1, "art_painting": 2, "cartoon": 3, "sketch": 4},
    "pacs-equal": {"photo": 3, "art_painting": 3, "cartoon": 3, "sketch": 3},
}

# Which of them a task uses when nothing else is asked for.
DEFAULT_ALLOCATIONS: dict[tuple[str, str], str] = {
    ("mini", "shift"): "mini-uneven",
    ("mini", "local"): "mini-uneven",
    ("digits", "shift"): "digits-papers",
    ("digits", "equal"): "digits-equal",
    ("digit5", "shift"): "digit5-fedcode",
    ("digit5", "local"): "digit5-fedcode",
    ("office10", "shift"): "office10-papers",
    ("office10", "equal"): "office10-equal",
    ("pacs", "shift"): "pacs-papers",
    ("pacs", "equal"): "pacs-equal",
    ("pacs", "local"): "pacs-fedcode",
}
