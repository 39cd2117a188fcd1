"""Settings of the documentation: ``make docs``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from polyad import __version__

project = "polyad"
author = "The polyad developers"
copyright = author
release = version = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say the types
numpydoc_show_class_members = False  # the class template lists them

html_theme = "furo"
html_title = f"polyad {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
highlight_language = "pycon"


def setup(app: Any) -> None:
    # MathML needs no script from the network.
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_inline_math, None), block_renderers=(_block_math, None)
    )
    app.connect("source-read", _close_code_blocks)
    app.connect("builder-inited", _draw_pictures)


def _draw_pictures(app: Any) -> None:
    folder = Path(app.srcdir)
    runpy.run_path(str(folder / "pictures.py"))["main"](folder / "generated")


def _close_code_blocks(app: Any, name: str, content: list[str]) -> None:
    # A doctest ends at a blank line, which is needed in the source and not on the page.
    content[0] = content[0].replace("\n\n```\n", "\n```\n")


def _inline_math(writer: Any, node: Any) -> None:
    _write_math(writer, node, "inline")


def _block_math(writer: Any, node: Any) -> None:
    _write_math(writer, node, "block")


def _write_math(writer: Any, node: Any, display: str) -> None:
    from docutils.nodes import SkipNode
    from latex2mathml.converter import convert

    # The converter does not know \Big before \|; MathML stretches such signs by itself.
    formula = convert(node.astext().replace(r"\Big", ""), display=display)
    tag = "div" if display == "block" else "span"
    writer.body.append(f'<{tag} class="math">{formula}</{tag}>')
    raise SkipNode
