"""Pictures of examples: those of pyplot, and those that zipbrain's own functions return under the name `figure`."""

from __future__ import annotations

from typing import Any

from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

_shown: list[Any] = []  # figures of earlier blocks


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The reST of a block's pictures, which are saved."""
    found: str = matplotlib_scraper(block, block_vars, gallery_conf)
    figure = block_vars["example_globals"].get("figure")
    if not hasattr(figure, "savefig") or any(figure is one for one in _shown):
        return found
    _shown.append(figure)
    if found:
        return found
    path = next(block_vars["image_path_iterator"])
    figure.savefig(path, dpi=150)
    shown: str = figure_rst([path], gallery_conf["src_dir"])
    return shown
