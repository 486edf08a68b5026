"""What the corpora of Temple University share: where to apply for them."""

from __future__ import annotations

from zipbrain.data.file_trees import OnRequest


def from_temple(name: str, folder: str, tree: str) -> OnRequest:
    """Where to apply for a corpus that lies in `folder` of Temple's server."""
    form = "https://isip.piconepress.com/projects/nedc/forms/tuh_eeg.pdf"
    how = (
        f"Fill in and sign {form} and mail it to help@nedcdata.org; Temple University then registers your SSH key, and "
        f"you fetch data/tuh_eeg/{folder} with rsync."
    )
    return OnRequest(name, "https://isip.piconepress.com/projects/nedc/html/tuh_eeg/", how, tree)
