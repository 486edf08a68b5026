"""What the machine lacks, in one line: memory, room on a disk, file descriptors, a place for temporary files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from zipbrain.files import LIMITS

_REMEDIES: Final = {
    **LIMITS,
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EACCES: "give a place that you may use",
    errno.EPERM: "give a place that you may use",
    errno.EROFS: "give a place that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}
_NO_TEMPORARY: Final = "No usable temporary directory"  # what Python says where TMPDIR and all places beside it fail

# What libraries say where memory or descriptors are missing, without an errno.
_SAID: Final = {
    "can't allocate memory": errno.ENOMEM,
    "cannot allocate memory": errno.ENOMEM,
    "failed to map segment": errno.ENOMEM,
    "bad_alloc": errno.ENOMEM,
    "bad allocation": errno.ENOMEM,
    "too many open files": errno.EMFILE,
}


def name_lack(error: BaseException) -> str | None:
    """What the machine lacked when a command failed, and what to do; None if the error has another cause."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return _words(errno.ENOMEM, str(cause))
        # Behind another error, one of the system is its cause only if something was lacking.
        if isinstance(cause, OSError) and (cause is error or cause.errno in _REMEDIES):
            return _system_words(cause)
        if isinstance(cause, ImportError | RuntimeError | SystemError) or type(cause).__module__.startswith("onnx"):
            said = str(cause).lower()
            for words, number in _SAID.items():
                if words in said:
                    return _words(number, str(cause))
    return None


def _system_words(error: OSError) -> str:
    said = error.strerror or str(error)
    if said.startswith(_NO_TEMPORARY):
        return f"{said}; set TMPDIR to a folder that can be written"
    where = "" if error.filename is None else f"{error.filename}: "
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{where}{said}" + ("" if remedy is None else f"; {remedy}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and what was being handled when it came."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(number: int, said: str) -> str:
    what = {errno.ENOMEM: "not enough memory", errno.EMFILE: "too many open files"}[number]
    first = (said.strip().splitlines() or [""])[0]
    return f"{what}{f' ({first})' if first else ''}; {_REMEDIES[number]}"
