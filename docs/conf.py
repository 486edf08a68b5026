"""Settings of the documentation; `make docs` builds it, without network if need be."""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))
from command_pages import write_page
from example_data import find_recordings

write_page(Path(__file__).parent / "reference" / "generated")
MADE_UP = find_recordings(Path(__file__).parents[1])  # True if examples run on stand-ins

project = "zipbrain"
author = "the zipbrain developers"
copyright = "2026, the zipbrain developers"
release = installed_version("zipbrain")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
# No sphinx.ext.intersphinx: it would fetch other projects' inventories while building.

templates_path = ["_templates"]
_GALLERIES = ("tutorials", "gallery")  # made from examples/ when the site is built
exclude_patterns = [
    *("_build", "_templates", "sg_execution_times.rst"),
    *(f"{name}/**/*.{ending}" for name in _GALLERIES for ending in ("ipynb", "py")),
]
default_role = "code"  # single backticks in docstrings name parameters as often as objects
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections already tell types and shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False


sphinx_gallery_conf = {
    "image_scrapers": ("gallery_pictures.scrape",),
    "examples_dirs": [f"../examples/{name}" for name in _GALLERIES],
    "gallery_dirs": list(_GALLERIES),
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = "zipbrain"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("index", "install", "get_started", "search", "genindex")}
html_math_renderer = "mathml"


def _show_math(translator, node):
    """Write a formula as MathML, which browsers draw by themselves: MathJax would have to be fetched."""
    block = isinstance(node, nodes.math_block)
    # The converter would put the index of an accented letter under it; an empty group carries it beside.
    formula = re.sub(r"\\(tilde|bar)\s*(\w)_", r"\\\1{\2}{}_", node.astext())
    mathml = tex2mathml(formula, as_block=block)
    box = '<div style="overflow-x: auto; margin: 1rem 0">{}</div>' if block else "{}"
    translator.body.append(box.format(mathml))
    raise nodes.SkipNode


def _say_made_up(app, name, source):
    """A line on pages made from examples, where no recordings could be had."""
    if MADE_UP and name.partition("/")[0] in _GALLERIES and not name.endswith("/index"):
        note = "Built without network: in place of EEGMAT's recordings, examples on this page used made-up ones."
        source[0] = f".. note::\n\n   {note}\n\n{source[0]}"


def setup(app):
    """Register the renderer of formulas, and the note about stand-ins."""
    app.connect("source-read", _say_made_up)
    app.add_html_math_renderer("mathml", (_show_math, None), (_show_math, None))
