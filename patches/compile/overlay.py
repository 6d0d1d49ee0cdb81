"""A vLLM tree that differs from another in a few files and costs no copy: links around them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from patches.tree import Tree

_CACHE = "__pycache__"


def lay(tree: Tree, contents: Mapping[str, bytes], folder: Path) -> Path:
    """Make the tree in `folder`, which is new, and return it; `contents` by path from ``vllm/``.

    It says the release without what a build for the CPU adds to it, which would have vLLM look for
    a CPU. Raises OSError.
    """
    held = {parent for path in contents for parent in PurePosixPath(path).parents}
    _fill(tree.package.resolve(), PurePosixPath("vllm"), folder, held)
    for path, content in contents.items():
        (folder / path).unlink()  # a link into the other tree, which is not to be written through
        (folder / path).write_bytes(content)
    release = (tree.version or "0").partition("+")[0]
    identity = folder / f"vllm-{release}.dist-info"
    identity.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n"
    (identity / "METADATA").write_text(text, encoding="utf-8")
    return folder


def _fill(source: Path, path: PurePosixPath, folder: Path, held: set[PurePosixPath]) -> None:
    """Link what lies in `source`, but go into what holds a changed file."""
    (folder / path).mkdir(parents=True)
    for entry in source.iterdir():
        below = path / entry.name
        if below in held:
            _fill(entry, below, folder, held)
        elif entry.name != _CACHE:
            (folder / below).symlink_to(entry)
