"""Make the tutorial as a notebook, with its outputs, from `docs/tutorial.md`; so nothing stands twice.

    python docs/notebook.py        # writes examples/tutorial.ipynb; needs the extra `dev`

Cells run only when the code has changed; after a change of the text alone their outputs are kept.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
SITE = "../docs/"  # where links to other pages lead from the notebook's folder


def notebook(page: str) -> nbformat.NotebookNode:
    """Turn a page into a notebook: text, and the blocks marked `python` and `sh`."""
    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for part in re.split(r"(^```(?:python|sh)\n.*?^```$)", page, flags=re.S | re.M):
        block = re.fullmatch(r"```(python|sh)\n(.*?)```", part, re.S)
        text = part.strip() if block is None else block[2].rstrip()
        if block is None and text:
            made.cells.append(nbformat.v4.new_markdown_cell(re.sub(r"\]\((?!https?:|#)", f"]({SITE}", text)))
        elif block is not None:
            code = text if block[1] == "python" else f"%%sh -e\n{text}"  # a command that fails ends the cell
            made.cells.append(nbformat.v4.new_code_cell(code))
    for number, cell in enumerate(made.cells):
        cell["id"] = f"part-{number}"  # not drawn at random: the same page gives the same notebook
    return made


def execute(made: nbformat.NotebookNode, place: Path) -> nbformat.NotebookNode:
    """Run every cell in a folder; a cell that fails, or a command in one, is an error."""
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.update(PATH=commands, COLUMNS="120", NO_COLOR="1")
    place_of = {"metadata": {"path": str(place)}}
    return NotebookClient(made, timeout=900, coalesce_streams=True, resources=place_of).execute()


def tidy(made: nbformat.NotebookNode, place: Path) -> nbformat.NotebookNode:
    """Take out what differs from one time to the next: hours, and the name of the folder."""
    for cell in made.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = "".join(output["text"]).replace(f"{place}{os.sep}", "").replace(str(place), ".")
    return made


def codes(made: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that run."""
    return [cell for cell in made.cells if cell.cell_type == "code"]


def renew(made: nbformat.NotebookNode, old: nbformat.NotebookNode) -> bool:
    """Take the outputs of an older notebook, if its code is the same."""
    same = [cell.source for cell in codes(made)] == [cell.source for cell in codes(old)]
    for new, done in zip(codes(made), codes(old), strict=False):
        new.update({"outputs": done.outputs, "execution_count": done.execution_count} if same else {})
    return same


def main() -> None:
    """Write the notebook."""
    made = notebook(PAGE.read_text(encoding="utf-8"))
    if not NOTEBOOK.exists() or not renew(made, nbformat.read(NOTEBOOK, as_version=4)):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder).resolve()
            tidy(execute(made, place), place)
    nbformat.write(made, NOTEBOOK)


if __name__ == "__main__":
    main()
