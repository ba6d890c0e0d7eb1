# SPDX-License-Identifier: Apache-2.0
"""Models on the Hugging Face Hub: fetching one into the Hub's cache, and publishing one.

What is fetched is as little trusted as any other directory: `ModelDirectory` reads it afterwards.
Only what that reads is fetched, so neither pickles nor code nor copies in other formats.
"""

from __future__ import annotations

import errno
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..files.explanations import about_gguf, about_pickles
from ..files.folder import INDEX, PICKLES, SINGLE_FILE, shards_in
from ..files.headers import CheckpointError
from ..files.places import CONFIG, is_file_name, refuse_no_model
from ..write.surroundings import is_carried

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)

Tell = Callable[[str, int], None]
"""Called with the id of a model and the bytes that are about to be fetched."""


class HubModel(NamedTuple):
    """A model on the Hub: `org/name`, and a branch, tag or commit (None: its main branch)."""

    id: str
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubModel | None:
        """Reads `org/name` or `org/name@revision`; None for what is no such name."""
        found = _ID.fullmatch(name)
        return None if found is None or ".." in name else cls(found["id"], found["revision"])

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def named(name: str | Path) -> HubModel | None:
    """The model on the Hub that a name means; None for a path, and where there is one so called."""
    if isinstance(name, Path) or Path(name).expanduser().exists():
        return None
    return HubModel.parse(name)


def directory_of(
    name: str | Path, tell: Tell = lambda name, nbytes: None, weights: bool = True
) -> Path:
    """Returns the directory of a model; one on the Hub is fetched into the Hub's cache.

    Args:
        name: A directory; or, as a string, `org/name` or `org/name@revision` on the Hub. A local
            directory of that name is taken first.
        tell: Called before weights are fetched.
        weights: Whether they are wanted.

    Raises:
        CheckpointError: If there is no such model; the message tells the remedy.
    """
    model = named(name)
    path = Path(name).expanduser() if model is None else fetch(model, tell, weights)
    refuse_no_model(path)
    return path


def fetch(model: HubModel, tell: Tell, weights: bool = True) -> Path:
    """Returns the directory of a model in the Hub's cache, with all that a command reads of it.

    Without a network it is the one that was fetched before.

    Args:
        model: The model.
        tell: Called before the weights are fetched, unless all of them are there.
        weights: Whether they are wanted.

    Raises:
        CheckpointError: For a model that is not there or not to be had, or has no safetensors
            weights; the message tells the remedy.
    """
    import huggingface_hub
    from huggingface_hub import errors

    api = huggingface_hub.HfApi(library_name="flashsparse")
    with _explained(model):
        try:
            info = api.model_info(model.id, revision=model.revision, files_metadata=True)
        except errors.HfHubHTTPError:
            raise  # the Hub has answered
        except (errors.OfflineModeIsEnabled, errors.HTTPError) as error:
            return _cached(model, error)
        except errors.HFValidationError:
            raise  # of the name
        except NOT_THE_HUB as error:
            raise CheckpointError(f"{model} is not fetched: {about_answer(error)}") from None
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or []}
        small = [name for name in sizes if is_carried(name) and not name.endswith(".py")]
        small += {CONFIG, INDEX} & sizes.keys()
        if not weights and CONFIG in sizes:
            return _download(model, small)
        if CONFIG not in sizes or not {SINGLE_FILE, INDEX} & sizes.keys():
            raise CheckpointError(_no_model(model, info, sorted(sizes)))
        home = _download(model, small)
        wanted = {SINGLE_FILE} if SINGLE_FILE in sizes else {each.name for each in shards_in(home)}
        shards = [name for name in sizes if name in wanted]
        absent = [name for name in shards if not (home / name).exists()]
        if absent:
            tell(str(model), sum(sizes[name] for name in absent))
            _download(model, shards)
    return home


def _download(model: HubModel, names: Sequence[str]) -> Path:
    """Fetches files by their names, those in the cache excepted."""
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(name) for name in names]
    return Path(snapshot_download(model.id, revision=model.revision, allow_patterns=patterns))


def _cached(model: HubModel, why: Exception) -> Path:
    """The model as it was fetched before; `ModelDirectory` notices what is missing of it."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        home = snapshot_download(
            model.id, revision=model.revision, allow_patterns=[CONFIG], local_files_only=True
        )
    except LocalEntryNotFoundError:
        told = f"no directory {model} is here, and it is not in {constants.HF_HUB_CACHE} either"
        if isinstance(why, OfflineModeIsEnabled):
            raise CheckpointError(
                f"{told}; HF_HUB_OFFLINE keeps it from being fetched: unset HF_HUB_OFFLINE, or "
                f"name a local directory"
            ) from None
        raise CheckpointError(
            f"{told}; the Hub cannot be reached ({type(why).__name__}: {why}). Check the network "
            f"and its proxy, or fetch it on another machine with `hf download {model.id} "
            f"--local-dir {model.id.partition('/')[2]}` and copy that directory here"
        ) from None
    return Path(home)


def _no_model(model: HubModel, info: ModelInfo, names: Sequence[str]) -> str:
    """What there is in the place of safetensors weights, and what to do with it."""
    for name in names:
        if name.endswith(".gguf") and is_file_name(name):
            return about_gguf(model.id, name, f"{model.id.partition('/')[2]}-safetensors")
    pickles = [name for name in names if name.endswith(PICKLES) and is_file_name(name)]
    if CONFIG in names and pickles:
        config: dict[str, Any] = info.config or {}
        return about_pickles(model.id, pickles[0], config, f"{model.id.partition('/')[2]}")
    missing = CONFIG if CONFIG not in names else f"{SINGLE_FILE} nor {INDEX}"
    return f"{model} is on the Hub, but has no {missing}: it is no model that transformers reads"


NOT_THE_HUB: Final = (ValueError, TypeError, KeyError, AttributeError)
"""What huggingface_hub raises of an answer that is no JSON, or JSON of another kind."""


def about_answer(error: Exception) -> str:
    """What to do where something answers in the place of the Hub."""
    from huggingface_hub import constants

    return (
        f"what answers at {constants.ENDPOINT} is not the Hub ({first_line(error)}), but maybe the "
        "login page of a network, or a proxy. Log in to the network, check HF_ENDPOINT and the "
        "proxy, and run the command again"
    )


def first_line(error: Exception) -> str:
    """What an error says in its first line, else its type."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


@contextmanager
def _explained(model: HubModel) -> Iterator[None]:
    """Turns errors of the Hub into sentences that say what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{model} is gated: accept its conditions at {constants.ENDPOINT}/{model.id}, then log "
            "in with `hf auth login` (or set HF_TOKEN)"
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"no directory {model} is here, and the Hub has no model {model.id} that you may see: "
            "check the spelling; for a private one log in with `hf auth login` (or set HF_TOKEN)"
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(
            f"{model.id} is on the Hub and has no branch, tag or commit {model.revision!r}"
        ) from None
    except errors.HFValidationError as error:
        raise CheckpointError(f"{model} is no name of a model on the Hub: {error}") from None
    except errors.HfHubHTTPError as error:
        raise CheckpointError(
            f"the Hub answers with an error where {model} is fetched ({first_line(error)}): run "
            "the command again later"
        ) from None
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise CheckpointError(
            f"the Hub cannot be reached any more ({type(error).__name__}: {first_line(error)}), "
            f"and {model} is not fetched. Check the network, and run the command again: it keeps "
            "the files that are whole"
        ) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise CheckpointError(
            f"there is no space left to fetch {model} to {constants.HF_HUB_CACHE}: make room, or "
            "set HF_HOME to a larger disk"
        ) from None
