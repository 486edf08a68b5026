"""Settings of the documentation; `make docs` builds it, without network."""

from importlib.metadata import version as installed_version

project = "zipbrain"
author = "the zipbrain developers"
copyright = "2026, the zipbrain developers"
release = installed_version("zipbrain")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
# No sphinx.ext.intersphinx: it would fetch other projects' inventories while building.

templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "gallery/**/*.ipynb", "gallery/**/*.py", "sg_execution_times.rst"]
default_role = "code"  # single backticks in docstrings name parameters as often as objects
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections already tell types and shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "plot_gallery": True,
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "zipbrain"
html_theme_options = {"navigation_with_keys": False, "show_toc_level": 2}
