"""One patch as data: its files, from which hash to which, and how upstream's own change is told."""

import ast
from dataclasses import dataclass

from patches import unified


@dataclass(frozen=True)
class HashPair:
    """sha256 of a target before and after the patch, and the releases that ship `before`."""

    before: str
    after: str
    releases: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """A question to a file's text that is true once upstream carries the change.

    Kinds: ``class-attribute CLASS.NAME`` (the class body assigns NAME) and ``text STRING`` (the
    file contains it).
    """

    kind: str
    argument: str

    def holds(self, content: bytes) -> bool:
        """Whether `content` carries the change; False for text that is not Python."""
        if self.kind == "text":
            return self.argument.encode() in content
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            return False
        return _assigns_class_attribute(tree, *self.argument.rsplit(".", 1))

    def __str__(self) -> str:
        return f"{self.kind} {self.argument}"


@dataclass(frozen=True)
class Target:
    """One file a patch changes. `path` is relative to the folder that holds ``vllm/``."""

    path: str
    pairs: tuple[HashPair, ...]
    probe: Probe | None
    diff: unified.FileDiff

    def pair_from(self, sha256: str) -> HashPair | None:
        """The pair whose before-hash is `sha256`."""
        return next((pair for pair in self.pairs if pair.before == sha256), None)

    def pair_to(self, sha256: str) -> HashPair | None:
        """The pair whose after-hash is `sha256`."""
        return next((pair for pair in self.pairs if pair.after == sha256), None)


@dataclass(frozen=True)
class Patch:
    """One patch file. `upstream_since` is the first vLLM release that carries the change."""

    name: str
    sha256: str
    description: str
    origin: str
    last_update: str
    upstream_since: str | None
    upstream_url: str | None
    targets: tuple[Target, ...]

    @property
    def remove_when(self) -> str:
        """When to drop the patch, as a phrase."""
        if self.upstream_since is None:
            return "upstream carries an equivalent (none known)"
        return f"the pin reaches vLLM >= {self.upstream_since}"


def _assigns_class_attribute(tree: ast.Module, class_name: str, attribute: str) -> bool:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != class_name:
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                names: list[ast.expr] = statement.targets
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                names = [statement.target]
            else:
                continue
            if any(isinstance(name, ast.Name) and name.id == attribute for name in names):
                return True
    return False
