"""What the corpora of Temple University share: inputs of models, and where to apply for them."""

from __future__ import annotations

from typing import Final

from zipbrain.data.corpora.base import BIPOLAR, REFERENTIAL, ModelInput
from zipbrain.data.file_trees import OnRequest

# BIOT's differs between them; EEGPT's official script feeds 200 Hz as they are.
TEMPLE_INPUTS: Final = {
    **dict.fromkeys(("labram", "eegpt"), ModelInput(REFERENTIAL, "hundred")),
    "tfm": ModelInput(BIPOLAR, "q95", cut_sfreq=256),
    "cbramod": ModelInput(BIPOLAR, "hundred"),
}


def from_temple(name: str, folder: str, tree: str) -> OnRequest:
    """Where to apply for a corpus that lies in `folder` of Temple's server."""
    form = "https://isip.piconepress.com/projects/nedc/forms/tuh_eeg.pdf"
    how = (
        f"Fill in and sign {form} and mail it to help@nedcdata.org; Temple University then registers your SSH key, and "
        f"you fetch data/tuh_eeg/{folder} with rsync."
    )
    return OnRequest(name, "https://isip.piconepress.com/projects/nedc/html/tuh_eeg/", how, tree)
