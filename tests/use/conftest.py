"""Sites to use a model at, and a run on them."""

import pytest
from site_helpers import SMALL, write_sites

import protolith as pl


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data") / "sites")


@pytest.fixture(scope="session")
def run(sites, tmp_path_factory):
    return pl.fit(task=str(sites), rounds=3, out=tmp_path_factory.mktemp("runs") / "run", **SMALL)
