"""Small vLLM-shaped trees and patch series over them, made on the spot."""

import difflib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

ORIGIN = "vendor, https://example.invalid/1"


@dataclass(frozen=True)
class MadePatch:
    """One patch to write: file name, and per target its content before and after."""

    name: str
    changes: dict[str, tuple[bytes, bytes]]
    probes: dict[str, str] = field(default_factory=dict)
    upstream: str = "9.0.0"

    def text(self) -> str:
        """The whole patch file."""
        lines = ["Description: made for a test", f"Origin: {ORIGIN}", "Last-Update: 2026-01-02"]
        lines.append(f"Applied-Upstream: {self.upstream}, https://example.invalid/1")
        for path, (before, after) in self.changes.items():
            lines.append(f"X-Target: {path}")
            lines.append(f"X-Sha256: {sha256(before)} -> {sha256(after)} (1.0.0)")
            lines.append(f"X-Upstream-Probe: {self.probes.get(path, 'text upstream has it')}")
        bodies = [unified_diff(path, *pair) for path, pair in self.changes.items()]
        return "\n".join([*lines, "---", *bodies])


def sha256(content: bytes) -> str:
    """The hash as the headers spell it."""
    return hashlib.sha256(content).hexdigest()


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """A diff of two texts that both end in a newline."""
    lines = difflib.unified_diff(
        before.decode().splitlines(keepends=True),
        after.decode().splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
    )
    return "".join(lines)


def write_series(folder: Path, patches: list[MadePatch]) -> Path:
    """Write the patches and their series file, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for patch in patches:
        (folder / patch.name).write_text(patch.text())
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
    return folder


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    """Write a vLLM-shaped tree of release 1.0.0 that holds `files`, and return its root."""
    contents = {"vllm/__init__.py": b"", "vllm/_version.py": b"__version__ = '1.0.0'\n", **files}
    for relative, content in contents.items():
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(content)
    return root


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below `root` with its content, to prove that nothing changed."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
