"""Upload a model directory to the Hugging Face hub."""

from importlib import import_module
from pathlib import Path
from typing import Any

from groupwise.core import GroupwiseError, MissingRequirement, Usage
from groupwise.models.hub import causes_of, has_type, is_hub_name


def check_upload(name: str) -> None:
    """Raise an error for an invalid `owner/name`, for a missing or refused token, and without a network."""
    if not is_hub_name(name) or "@" in name:
        raise Usage(f"{name!r} is not a name on the hub", fix="write owner/name: --push owner/name")
    if hub().get_token() is None:
        raise MissingRequirement(
            "uploading needs a token of the hub",
            fix="log in with a token that may write: hf auth login, or set HF_TOKEN",
        )
    try:
        hub().HfApi().whoami()
    except Exception as error:  # the library and its transports raise many types
        raise upload_error(name, "", error) from error


def upload(directory: Path, name: str) -> str:
    """Upload a model directory as `owner/name`, and return its address. A new repository is private."""
    api = hub().HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(directory), commit_message="Model trained with Groupwise")
    except Exception as error:  # the library and its transports raise many types
        raise upload_error(name, str(directory), error) from error
    return str(address)


def upload_error(name: str, directory: str, error: Exception) -> GroupwiseError:
    """The error for a failed upload. With a `directory`, its fix has the command that repeats the upload."""
    errors, causes = import_module("huggingface_hub.errors"), causes_of(error)
    evidence = next((line for line in str(causes[-1]).splitlines() if line.strip()), type(error).__name__)[:200]
    again = f"\nthen: hf upload {name} {directory}" if directory else ""
    if has_type(causes, errors.HfHubHTTPError):
        fix = f"check the owner's name, and log in with a token that may write: hf auth login{again}"
        return MissingRequirement(f"the hub refused the upload of {name}", evidence=evidence, fix=fix)
    fix = f"check the network, or leave out --push{again}"
    return MissingRequirement(f"the hub cannot be reached to upload {name}", evidence=evidence, fix=fix)


def hub() -> Any:
    """The package `huggingface_hub`, imported late. MissingRequirement without it."""
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        fix = "pip install huggingface_hub"
        raise MissingRequirement("uploading needs huggingface_hub", evidence=str(error), fix=fix) from error
