"""Whole checkpoints and the others. A checkpoint counts once it is sealed, as long as no file of it changes its size.

verl names a checkpoint the latest one before its export is finished, in a file that a kill can leave empty, and looks
at no file before it loads them all.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from search_rl.errors import TrainingError

SEAL = "files.json"
LATEST = "latest_checkpointed_iteration.txt"


def write_whole(path: Path, text: str) -> None:
    """Write a small file in one move: a kill leaves the old one or the new one."""
    staging = path.with_name(f"{path.name}.new")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)


def seal(checkpoint: Path) -> None:
    """Note the size of every file below `checkpoint`, which is finished now."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL)
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    write_whole(checkpoint / SEAL, json.dumps(sizes, indent=1) + "\n")


def fault(checkpoint: Path) -> str:
    """What keeps a checkpoint from being used, empty for a whole one. Sizes are compared, contents are not read."""
    try:
        sizes: dict[str, int] = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not finished"
    except ValueError:
        return f"its {SEAL} is damaged"
    for name, num_bytes in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != num_bytes:
            return f"{name} has {path.stat().st_size} bytes of {num_bytes}"
    return ""


def link_tree(source: Path, out: Path) -> None:
    """Make `out` a second name of each file below `source`; copies where the file system knows no hard links."""
    if out.exists():
        shutil.rmtree(out)
    shutil.copytree(source, out, copy_function=_link)


def _link(source: str, out: str) -> None:
    try:
        os.link(source, out)
    except OSError:
        shutil.copy2(source, out)


def point(link: Path, target: Path) -> None:
    """Make `link` a relative symbolic link to `target`, in one move.

    Raises TrainingError for a folder in its place, which a copy that follows links leaves there.
    """
    if link.is_dir() and not link.is_symlink():
        raise TrainingError(f"{link} is a folder, and the run keeps a link there: move it away and start again")
    staging = link.with_name(f"{link.name}.new")
    staging.unlink(missing_ok=True)
    staging.symlink_to(os.path.relpath(target, link.parent))
    staging.replace(link)
