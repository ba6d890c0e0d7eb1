# SPDX-License-Identifier: Apache-2.0
"""Publishing a finished model directory on the Hugging Face Hub.

What could refuse it is asked before the work that makes the directory, and nothing is made on the
Hub before the directory is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ..files.headers import CheckpointError
from .fetching import NOT_THE_HUB, HubModel, about_answer, first_line

_LOG_IN: Final = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


class Publisher(NamedTuple):
    """May write to a model on the Hub.

    Attributes:
        model: The model.
    """

    model: HubModel

    @classmethod
    def of(cls, name: str) -> Publisher:
        """Asks the Hub whether this user may write to a model.

        Args:
            name: As `org/name`; it need not exist.

        Raises:
            CheckpointError: If that is no name, nobody is logged in, or the Hub says no.
        """
        import huggingface_hub
        from huggingface_hub import errors

        model = HubModel.parse(name)
        if model is None or model.revision is not None:
            raise CheckpointError(f"{name!r} is no name of a model on the Hub: it is like ORG/NAME")
        api = huggingface_hub.HfApi(library_name="flashsparse")
        try:
            user = api.whoami()
            role = ((user.get("auth") or {}).get("accessToken") or {}).get("role")
            mine = [user.get("name"), *(org.get("name") for org in user.get("orgs") or [])]
        except errors.LocalTokenNotFoundError:
            raise CheckpointError(f"nobody is logged in to push to {model}: {_LOG_IN}") from None
        except errors.HfHubHTTPError as error:
            raise CheckpointError(
                f"the Hub does not know who wants to push to {model} ({first_line(error)}): "
                f"{_LOG_IN}"
            ) from None
        except (errors.OfflineModeIsEnabled, errors.HTTPError) as error:
            raise CheckpointError(
                f"the Hub cannot be reached to push to {model} ({first_line(error)}): check the "
                "network, or leave --push out and push later with `hf upload`"
            ) from None
        except NOT_THE_HUB as error:
            raise CheckpointError(f"nothing is pushed to {model}: {about_answer(error)}") from None
        if role == "read":
            raise CheckpointError(f"this token may only read, and not push to {model}: {_LOG_IN}")
        owner = model.id.partition("/")[0]
        if owner not in mine and role != "fineGrained":  # such a token need not tell of all
            raise CheckpointError(
                f"{user.get('name')} cannot push to {model}: {owner} is neither you nor an "
                "organisation of yours"
            )
        return cls(model)

    def publish(self, directory: Path, summary: str) -> str:
        """Uploads a directory; a model that is there is replaced, with its old weights.

        A new model on the Hub is private.

        Args:
            directory: A complete model directory.
            summary: What it is, for the commit message.

        Returns:
            The address of the model.

        Raises:
            CheckpointError: If it could not be uploaded; what is in the directory stays.
        """
        import huggingface_hub
        from huggingface_hub import errors

        api = huggingface_hub.HfApi(library_name="flashsparse")
        try:
            url = api.create_repo(self.model.id, private=True, exist_ok=True)
            api.upload_folder(
                repo_id=self.model.id,
                folder_path=directory,
                commit_message=summary,
                delete_patterns=["*.safetensors", "*.safetensors.index.json", "*.bin"],
            )
        except (errors.HTTPError, OSError, *NOT_THE_HUB) as error:
            raise CheckpointError(
                f"{directory} is complete, and could not be pushed to {self.model} "
                f"({first_line(error)}). To push it again: hf upload {self.model.id} {directory}"
            ) from None
        return str(url)
