"""What is installed only on demand, and the sentence that says how."""

from importlib.util import find_spec

from protolith.errors import UserError

# The modules of each extra of pyproject.toml that is asked for here, and the package that brings them.
EXTRAS = {
    "report": {"matplotlib": "matplotlib", "plotly": "plotly", "sklearn": "scikit-learn"},
    "formats": {"pyarrow": "pyarrow", "h5py": "h5py"},
    "hub": {"huggingface_hub": "huggingface-hub", "pyarrow": "pyarrow"},
}


def need(what: str, extra: str, *only: str) -> None:
    """Refuse what needs an extra, or only some modules of it, that is not installed; nothing is imported to see it."""
    for module, package in EXTRAS[extra].items():
        if module in (only or EXTRAS[extra]) and find_spec(module) is None:
            raise UserError(f"{what} needs {package}, which is not installed: pip install 'protolith[{extra}]'.")
