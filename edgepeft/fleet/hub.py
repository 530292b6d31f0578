"""A repository on the Hugging Face Hub: the same files, uploaded by ``huggingface_hub``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuf.api.exceptions import DownloadError

from edgepeft.bundle.manifest import hub_name_of, task_table
from edgepeft.common.errors import EdgepeftError, UsageError, requiring
from edgepeft.common.messages import reason
from edgepeft.fleet.fetcher import Fetcher
from edgepeft.fleet.layout import Published

__all__ = ["HUB", "HubFetcher", "hub_address", "upload"]

HUB = "hub://"  # an address of ours: hub://owner/name@revision
_PART = r"[\w-][\w.-]*"
_NAME = rf"{_PART}/{_PART}"
_CARD = "README.md"


def hub_address(name: str) -> str:
    """The address of ``owner/name`` or ``owner/name@revision``."""
    repository, _, revision = name.partition("@")
    if not re.fullmatch(_NAME, repository, re.ASCII) or not re.fullmatch(r"[\w./-]*", revision, re.ASCII):
        raise UsageError(f"{name!r} is no name on the Hub; give OWNER/NAME or OWNER/NAME@REVISION.")
    return f"{HUB}{repository}@{revision or 'main'}"


class HubFetcher(Fetcher):
    """Files at the addresses that ``huggingface_hub`` names, with its token, at our pace."""

    def __init__(self, folder: Path, resumable: str) -> None:
        with requiring("hub", "the Hub"):
            import huggingface_hub
            import huggingface_hub.constants  # the package itself does not import it
        self._hub: Any = huggingface_hub
        super().__init__(folder, resumable)

    def _from(self, url: str, start: int) -> tuple[int, Iterator[bytes]]:
        if self._hub.constants.HF_HUB_OFFLINE:
            raise DownloadError(f"{url}: HF_HUB_OFFLINE is set")
        self.requests += 1
        owner, name, file = url.removeprefix(HUB).split("/", 2)
        name, _, revision = name.partition("@")
        # A revision such as refs/pr/1 has slashes, and our files are two folders' alone.
        parts = re.fullmatch(r"(?:(.*)/)??((?:metadata|targets)/.*)", file)
        assert parts is not None, "the updater asks for metadata and targets"
        revision = "/".join(filter(None, (revision, parts[1])))
        place = self._hub.hf_hub_url(f"{owner}/{name}", parts[2], revision=revision)
        return self._of_http(place, start, self._hub.utils.build_hf_headers())


def upload(repository: Path, name: str, published: Published, license_id: str | None) -> str:
    """Bring a repository to the Hub in one commit, with a model card; the commit's address."""
    hub_address(name)
    with requiring("hub", "the Hub"):
        from huggingface_hub import HfApi
    try:
        api: Any = HfApi()
        api.create_repo(name, exist_ok=True)
        card = hub_card(name, published, license_id).encode()
        api.upload_file(path_or_fileobj=card, path_in_repo=_CARD, repo_id=name, commit_message="Model card")
        done = api.upload_folder(
            repo_id=name, folder_path=str(repository), ignore_patterns=[".*", _CARD], commit_message="edgepeft publish"
        )
    except Exception as error:  # the library's many kinds
        raise EdgepeftError(
            f"{name} could not be uploaded ({type(error).__name__}: {reason(error)}). {repository} has "
            "all of it; log in with hf auth login, and repeat with --refresh --to-hub."
        ) from error
    return str(done.commit_url)


def hub_card(name: str, published: Published, license_id: str | None) -> str:
    """The model card: scores, licence, and the kinds and methods of the tasks as tags."""
    from huggingface_hub import ModelCardData

    manifest = published.manifest
    methods = sorted({entry.method for entry in manifest.tasks.values()})
    kinds = sorted({entry.task_kind.name for entry in manifest.tasks.values()})
    data: Any = ModelCardData(
        base_model=hub_name_of(manifest),
        library_name="edgepeft",
        license=license_id,
        tags=["edgepeft", "onnx", "peft", *kinds, *methods],
    )
    lines = ["---", data.to_yaml(), "---", "", f"# {name.partition('/')[2]}", ""]
    lines += ["Tasks for boards, signed: a repository of The Update Framework, as `edgepeft publish` writes it.", ""]
    lines += [*task_table(manifest), "", "```", f"edgepeft pull --from-hub {name} bundle --root 1.root.json", "```", ""]
    return "\n".join(lines)
