"""The Hugging Face hub: a repository's files here, a folder's files there, and one line where it fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from zipbrain._lazy import import_extra
from zipbrain.errors import DataError, OptionError, ZipbrainError
from zipbrain.transfer import OFFLINE, is_offline

_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_LONGEST: Final = 300  # characters of the hub's own words


def is_repository_name(name: str) -> bool:
    """True for a name such as ``owner/name``."""
    return _NAME.fullmatch(name) is not None and not name.startswith(".")


def download_repository(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """The folder in the hub's own cache that holds these files of a repository, as far as it has them.

    With ``ZIPBRAIN_OFFLINE`` or ``HF_HUB_OFFLINE`` nothing is fetched.
    """
    hub = _library(f"from_pretrained({name!r})")
    with _plain_errors("source", name):
        found = hub.snapshot_download(
            name, revision=revision, allow_patterns=list(files), local_files_only=is_offline(), library_name="zipbrain"
        )
    return Path(found)


def upload_folder(folder: Path, name: str, message: str, *, private: bool, token: str | None) -> str:
    """Put a folder's files into a repository, which is made where there is none; the address of the commit."""
    hub = _library(f"push_to_hub({name!r})")
    if is_offline():
        raise OptionError("repository", name, f"{OFFLINE} forbids the network")
    with _plain_errors("repository", name):
        api = hub.HfApi(token=token, library_name="zipbrain")
        api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise OptionError("private", True, f"{name} is there already and public: make it private on the hub first")
        # A recipe of an older commit would compress a model that is not compressed now.
        gone = None if (folder / "recipe.json").exists() else "recipe.json"
        commit = api.upload_folder(folder_path=folder, repo_id=name, commit_message=message, delete_patterns=gone)
        return str(commit.commit_url)


def _library(purpose: str) -> Any:
    return import_extra("huggingface_hub", "huggingface_hub", "hub", purpose)


@contextmanager
def _plain_errors(option: str, name: str) -> Iterator[None]:
    """Turn whatever the hub's library raises into one line."""
    errors, constants = (import_module(f"huggingface_hub.{part}") for part in ("errors", "constants"))
    place = constants.ENDPOINT
    try:
        yield
    except ZipbrainError:
        raise
    except errors.GatedRepoError:
        raise OptionError(option, name, f"{place} gives it to people who accepted its terms: log in there") from None
    except errors.RepositoryNotFoundError:
        words = f"{place} has no such repository, or it is private: see its name, or log in with 'hf auth login'"
        raise OptionError(option, name, words) from None
    except errors.RevisionNotFoundError:
        raise OptionError("revision", name, f"{place} has no such revision of this repository") from None
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = "log in with 'hf auth login', or give a token" if status in (401, 403) else "try again later"
        raise DataError(f"{name}: {place} answered {status or _words(error)}; {advice}") from None
    except errors.LocalEntryNotFoundError as error:
        offline = is_offline() or constants.HF_HUB_OFFLINE
        why = "the network is forbidden" if offline else f"{place} can't be reached ({_words(error)})"
        raise DataError(f"{name}: {why}, and the hub's cache does not hold it; check the network") from None
    except Exception as error:  # of the connection, the disk, or an answer that is no hub's
        advice = f"check the network: a proxy or a login page may have answered in place of {place}"
        raise DataError(f"{name}: {_words(error)}; {advice}") from None


def _words(error: Exception) -> str:
    """What the library said, in one line and without its advice."""
    text = " ".join(str(error).split()).removeprefix("Got: ")
    return f"{type(error).__name__}: {text}"[:_LONGEST] if text else type(error).__name__
