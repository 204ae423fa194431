"""Where a published file comes from: a folder on this machine, the hub, or an installed package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from search_rl.datasets.benchmarks import FANOUTQA_PACKAGE, Part
from search_rl.errors import DataError


def locate(part: Part, *, folder: Path | None, revision: str | None) -> Path:
    """The file of `part` on this machine: in `folder`, laid out as its repository is, or else downloaded.

    Raises DataError that says where it was looked for and what to do.
    """
    if folder is not None:
        path = folder / part.path
        if not path.is_file():
            raise DataError(f"no {part.path} in {folder}: the folder must be laid out as {part.repository} is")
        return path
    return _packaged(part) if part.repository == FANOUTQA_PACKAGE else _downloaded(part, revision)


def commit_of(path: Path) -> str | None:
    """The commit of the hub under which the file lies in its cache, None for a file that lies elsewhere."""
    found = re.search(r"/snapshots/([0-9a-f]{40})/", path.as_posix())
    return found[1] if found else None


def _packaged(part: Part) -> Path:
    """FanOutQA's file is read where it lies: importing the package would need spaCy and more."""
    found = importlib.util.find_spec(part.repository)
    path = Path(found.origin).parent / part.path if found and found.origin else None
    if path is None or not path.is_file():
        raise DataError(
            f"package {part.repository} is not installed: `pip install --no-deps fanoutqa==1.1.1`, or give --from"
        )
    return path


def _downloaded(part: Part, revision: str | None) -> Path:
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(hf_hub_download(part.repository, part.path, repo_type="dataset", revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise DataError(
            f"cannot download {part.path} of {part.repository}: {reason}. Without a network, copy the repository here "
            f"and give --from FOLDER"
        ) from error
