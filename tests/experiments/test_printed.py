"""The papers' numbers, and that they agree with themselves where a paper says how they were computed."""

import csv
from importlib.resources import files

import pytest

from protolith.experiments.printed import our_column, printed_table

FOLDER = files("protolith.experiments") / "papers" / "tables"
TABLES = sorted(item.name.removesuffix(".csv") for item in FOLDER.iterdir() if item.name.endswith(".csv"))
ROWS = [(t, d, m, cells) for t in TABLES for d, rows in printed_table(t).items() for m, cells in rows.items()]


def test_all_tables_are_here():
    assert len(TABLES) == 16 and len(ROWS) > 150


@pytest.mark.parametrize(("table", "dataset", "method", "cells"), ROWS, ids=lambda value: str(value)[:20])
def test_means_and_ratios_follow_from_their_rows(table, dataset, method, cells):
    domains = [value for name, value in cells.items() if name.islower() and name != "mean"]
    if "mean" in cells and len(domains) > 1:
        assert cells["mean"] == pytest.approx(sum(domains) / len(domains), abs=0.035)
    atas = [value for name, value in cells.items() if name.startswith("ATA ")]
    if atas:  # GATA is the unweighted mean over domains
        assert cells["GATA"] == pytest.approx(sum(atas) / len(atas), abs=0.011)
    if "CPRR" in cells:
        assert cells["CPRR"] == pytest.approx(100 * cells["GATA"] / cells["GASA"], abs=0.03)


def test_what_was_printed_wrongly_is_mended_and_nothing_else():
    changed = []
    for table in TABLES:
        for line in csv.DictReader((FOLDER / f"{table}.csv").read_text().splitlines()):
            column = our_column(line["dataset"], line["column"])
            if column and printed_table(table)[line["dataset"]][line["method"]][column] != float(line["value"]):
                changed.append((table, line["method"], column))
    assert changed == [
        ("fedcode_table3", "FedCode", "GATA"),
        ("fedcode_table3", "FedCode", "GASA"),
        ("i2pfl_table2", "FedProc", "mean"),
        ("i2pfl_table2", "FedProc", "mean"),
        ("i2pfl_table3", "COPA", "mean"),
    ]


def test_columns_are_translated():
    assert our_column("Office-10", "A") == "amazon" and our_column("PACS", "A") == "art_painting"
    assert our_column("Digits", "->mt") == "mnist" and our_column("Digit5", "ATA_MNIST-M") == "ATA mnistm"
    assert our_column("Digits", "AVG") == our_column("Office-10", "Average") == "mean"
    assert our_column("Digits", "Delta_vs_FedAvg") is None
