"""Bytes from outside, at random: the targets of benchmarks/fuzz, with hypothesis instead of coverage as the guide."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz"
TARGETS = sorted(path.name for path in (FUZZ / "corpus").iterdir())
TRIES = {"images": 60, "manifest": 80, "config": 60, "checkpoint": 80}
bounded = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def load(target):
    """The target's function; the place for its files is shared."""
    if target == "wire":
        pytest.importorskip("flwr")
    for name in ("place", target):
        known = name if name == "place" else f"fuzz_{name}"
        if known not in sys.modules:
            spec = importlib.util.spec_from_file_location(known, FUZZ / f"{name}.py")
            sys.modules[known] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[known])
    return sys.modules[f"fuzz_{target}"].one


def seeds(target):
    return [path.read_bytes() for path in sorted((FUZZ / "corpus" / target).iterdir())]


@st.composite
def changed(draw, contents):
    """One of the seeds with a few bytes changed, a piece cut out, and another put in."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(0, 4))):
        if content:
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    start, length = draw(st.integers(0, len(content))), draw(st.integers(0, 64))
    cut = draw(st.booleans())
    return bytes(content[:start]) + draw(st.binary(max_size=16)) + bytes(content[start + length * cut :])


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_what_was_once_found(target):
    one = load(target)
    for content in seeds(target):
        one(content)
        one(content[: len(content) // 2])


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_at_random(target):
    one = load(target)

    @settings(bounded, max_examples=TRIES.get(target, 200))
    @given(st.one_of(changed(seeds(target)), st.binary(max_size=256)))
    def holds(content):
        one(content)

    holds()


def test_every_target_has_seeds_and_is_known_to_the_runner():
    text = (FUZZ / "run.py").read_text()
    assert all(f'"{target}"' in text and (FUZZ / f"{target}.py").is_file() for target in TARGETS)
    assert sum(path.stat().st_size for path in (FUZZ / "corpus").rglob("*") if path.is_file()) < 300_000
