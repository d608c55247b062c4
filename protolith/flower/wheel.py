"""The wheel from which a site installs Protolith: the site has no clone, and no package index has it."""

from pathlib import Path
from zipfile import BadZipFile, ZipFile

from protolith import __version__
from protolith.errors import UserError

NAME = "protolith-*.whl"
CLONE = Path(__file__).parents[2]


def checked(file: Path) -> Path:
    """The file, if it is a wheel of Protolith."""
    try:
        with ZipFile(file) as wheel:
            ours = file.match(NAME) and "protolith/__init__.py" in wheel.namelist()
    except (OSError, BadZipFile):
        ours = False
    if not ours:
        raise UserError(f"--wheel {file}: not a wheel of Protolith (`make dist` in a clone builds one in dist/).")
    return file


def found(clone: Path = CLONE) -> Path | None:
    """The wheel that was built of this clone, unless the code has changed since."""
    wheel = clone / "dist" / f"protolith-{__version__}-py3-none-any.whl"
    if not wheel.is_file():
        return None
    code = (file for file in (clone / "protolith").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return wheel if all(file.stat().st_mtime <= wheel.stat().st_mtime for file in code) else None


def lacking(clone: Path = CLONE) -> str:
    """What is to be done where there is no wheel."""
    where = clone if (clone / "pyproject.toml").is_file() else "a clone"
    return (
        f"the sites install Protolith from a wheel: `make dist` in {where} builds it into dist/. Put it beside each "
        "start.sh, or name it with --wheel FILE."
    )
