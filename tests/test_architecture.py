"""Imports point downward between the rooms of the house."""

import ast
from pathlib import Path

import protolith

ROOT = Path(protolith.__file__).parent
# From the ground up; a room may use what stands before it.
ROOMS = [
    "errors",
    "extras",
    "doors",
    "files",
    "machine",
    "seeds",
    "devices",
    "records",
    "data",
    "models",
    "encoding",
    "losses",
    "prototypes",
    "methods",
    "evaluation",
    "federation",
    "engines",
    "runs",
    "flower",
    "experiments",
    "report",
    "use",
    "api",
    "cli",
]


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return [name.split(".")[1] for name in found if name.startswith("protolith.")]


def upward(source: str, room: str) -> list[str]:
    level = ROOMS.index(room)
    return [other for other in imports(ast.parse(source)) if other in ROOMS and ROOMS.index(other) > level]


def test_every_file_belongs_to_a_room():
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert rooms - {"__init__", "__main__"} <= set(ROOMS)


def test_imports_point_downward():
    faults = {}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__") and (found := upward(path.read_text(), room)):
            faults[str(path.relative_to(ROOT))] = found
    assert faults == {}


def test_the_check_finds_an_upward_import():
    assert upward("from protolith.runs import runner", "methods") == ["runs"]
    assert upward("from protolith import cli", "data") == ["cli"]
    assert upward("def f():\n    import protolith.federation.setup", "models") == ["federation"]
    assert upward("from protolith.errors import UserError", "data") == []


def test_nothing_unpickles_data():
    """One file opens PyTorch's own, with `weights_only`: weights that a user named, or whose SHA-256 is known."""
    for path in ROOT.rglob("*.py"):
        names = {
            node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            for node in ast.walk(ast.parse(path.read_text()))
        }
        text = path.read_text()
        assert "import pickle" not in text and "pickle" not in names, path
        loads = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
        ]
        if path == ROOT / "models" / "weights.py":
            assert len(loads) == 1 and text.count("torch.load") == 2  # the other is the library's of safetensors
            assert {k.arg: ast.unparse(k.value) for k in loads[0].keywords}["weights_only"] == "True"
        else:
            assert "torch.load" not in text, path
