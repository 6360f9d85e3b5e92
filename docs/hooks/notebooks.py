"""Notebooks as pages: each runs in its own folder and is shown with its outputs; an error in it ends the build."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"

_SHOWN: dict[str, list[str]] = {}
"""Outputs as HTML by page, inserted after Markdown, which would interpret them."""

_PLACE = re.compile(r'<div data-output="(\d+)"></div>')


def on_files(files: Files, config: Any) -> Files:
    """Replace each notebook by a page."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        uri = f"notebooks/{path.name}"
        source = files.get_file_from_path(uri)
        if source is not None:
            files.remove(source)
        text, _SHOWN[uri] = page_of(executed(path))
        page = File.generated(config, uri.replace(".ipynb", ".md"), content=text)
        files.append(page)
        _SHOWN[page.src_uri] = _SHOWN.pop(uri)
    return files


def on_config(config: Any) -> Any:
    """Replace notebooks by their pages in the navigation."""
    for part in config.nav:
        for pages in part.values():
            pages[:] = [_as_page(page) for page in pages]
    return config


def _as_page(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: to.replace(".ipynb", ".md") if isinstance(to, str) else to for name, to in entry.items()}
    return entry


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Insert the outputs of the cells."""
    outputs = _SHOWN.get(page.file.src_uri, [])
    return _PLACE.sub(lambda place: outputs[int(place[1])], html)


def executed(path: Path) -> nbformat.NotebookNode:
    """Run all cells in the notebook's folder; raise if one fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    return notebook


def page_of(notebook: nbformat.NotebookNode) -> tuple[str, list[str]]:
    """Convert the notebook to Markdown with a place for every output, and its outputs to HTML."""
    parts: list[str] = []
    outputs: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(f'<div data-output="{len(outputs)}"></div>')
            outputs.append(_shown(output))
    return "\n\n".join(parts) + "\n", outputs


def _shown(output: nbformat.NotebookNode) -> str:
    """Wrap one output of a cell."""
    return f'<div class="output">{_form(output)}</div>'


def _form(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return _preformatted(output.text)
    data = output.data
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        return f'<img alt="Output of the cell above" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        html: str = data["text/html"]
        return html
    return _preformatted(data["text/plain"])


def _preformatted(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"
