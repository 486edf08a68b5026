"""pylsl, imported where it is used, without the lines that liblsl writes to the terminal by itself."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Final

from zipbrain._lazy import import_extra

_QUIET: Final = "[log]\nlevel = -3\n"  # the session reports errors itself
_SETTINGS: Final = ("lsl_api.cfg", "~/lsl_api/lsl_api.cfg", "/etc/lsl_api/lsl_api.cfg")  # where a user's own may lie


@cache
def load_pylsl(purpose: str = "a source or an output of the Lab Streaming Layer") -> Any:
    """The module pylsl; refused with the name of the extra where it, or its library, is missing."""
    try:
        pylsl = import_extra("pylsl", "pylsl", "live", purpose)
    except RuntimeError as error:  # its wheel holds no liblsl for this machine
        from zipbrain.errors import DataError

        words = " ".join(str(error).split())
        raise DataError(f"{purpose} needs liblsl, which pylsl did not find ({words}); install liblsl") from None
    if "LSLAPICFG" not in os.environ and not any(Path(path).expanduser().exists() for path in _SETTINGS):
        pylsl.set_config_content(_QUIET)
    return pylsl
