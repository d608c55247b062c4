"""A site without a clone: its directory holds the wheel, and Protolith comes from that."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import protolith as pl
from protolith.flower import wheel as wheels

INSTALLED = (Path(sys.executable).parent / "flower-superlink").exists()
needs_flower = pytest.mark.skipif(not INSTALLED, reason="Flower is not installed (pip install 'protolith[flower]')")


@needs_flower
def test_a_sites_directory_installs_offline_and_imports(protolith, wheel, tmp_path):
    code, out, err = protolith("deploy", "init", "d", "--sites", "a,b", "--wheel", wheel)
    assert code == 0 and "made" in out and f"holds {wheel.name}" in err
    site = tmp_path / "d" / "sites" / "b"
    assert f"pip install './{wheel.name}[flower]'" in (site / "README.md").read_text()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", "here", wheel.name]
    done = subprocess.run(install, cwd=site, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(site / "here")}
    command = [sys.executable, "-c", "import protolith; print(protolith.__file__, protolith.__version__)"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(site / "here" / "protolith" / "__init__.py"), pl.__version__], done.stderr


@needs_flower
def test_the_start_script_says_how_to_install_the_wheel_beside_it(protolith, wheel, tmp_path):
    protolith("deploy", "init", "d", "--sites", "a", "--wheel", wheel)
    site = tmp_path / "d" / "sites" / "a"
    command = ["/bin/sh", str(site / "start.sh"), str(tmp_path)]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and f"pip install '{site / wheel.name}[flower]'" in done.stderr


@needs_flower
def test_without_a_wheel_one_line_says_how_to_build_it(protolith, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "found", lambda: None)
    code, _, err = protolith("deploy", "init", "d", "--sites", "a")
    assert code == 0 and err.count("\n") == 1 and "`make dist`" in err and "--wheel FILE" in err
    readme = (tmp_path / "d" / "sites" / "a" / "README.md").read_text()
    assert "put it into this directory first" in readme and "pip install 'protolith" not in readme


@needs_flower
@pytest.mark.parametrize("name", ["missing-1.whl", "other-1.0-py3-none-any.whl", "protolith-1.0-py3-none-any.whl"])
def test_what_is_no_wheel_of_protolith_is_refused_before_anything_is_made(protolith, tmp_path, name):
    if not name.startswith("missing"):
        (tmp_path / name).write_bytes(b"no wheel")
    code, _, err = protolith("deploy", "init", "d", "--sites", "a", "--wheel", name)
    assert code == 2 and f"--wheel {name}: not a wheel of Protolith" in err and not (tmp_path / "d").exists()


def test_a_wheel_that_is_older_than_the_code_is_not_taken(tmp_path):
    code, built = tmp_path / "protolith" / "code.py", tmp_path / "dist" / f"protolith-{pl.__version__}-py3-none-any.whl"
    for file in (code, built):
        file.parent.mkdir()
        file.write_bytes(b"")
    now = time.time()
    os.utime(code, (now - 100, now - 100))
    assert wheels.found(tmp_path) == built
    os.utime(code, (now + 100, now + 100))
    assert wheels.found(tmp_path) is None
