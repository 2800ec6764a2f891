from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import DEADLINE_S, FOLDER
from tests.helpers.warm_python import python


def test_notebook_runs(tmp_path: Path) -> None:
    """The notebook runs from top to bottom, resumes exactly and learns; the repository has it without output."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(FOLDER / "tour.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    client = NotebookClient(notebook, timeout=DEADLINE_S, resources={"metadata": {"path": str(tmp_path)}})
    kernel = client.create_kernel_manager().kernel_spec
    assert kernel is not None
    kernel.argv[0] = python()
    client.execute()
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert ", 0 twice, of " in printed
    right, guessed = printed.splitlines()[-1].split(" right; guessing gives ")
    assert int(right.split()[0]) > 2 * int(guessed)
