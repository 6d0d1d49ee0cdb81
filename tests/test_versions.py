"""No release of vLLM stands in code: folders of releases, facts and faults are asked instead."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

from tests.support.vllm_trees import SHA256

ROOT = Path(__file__).resolve().parents[1]
_RELEASES = "|".join(sorted({re.escape(v.rpartition(".")[0]) for v in SHA256}))
VERSION = re.compile(rf"(?<![\w.])(?:{_RELEASES})(?:\.\d+)?(?![\d.]*\d)")

CODE = ("deploy", "docker", "healthcheck", "patches", "Makefile")

# Where a release is data, each with the reason.
DATA = {
    "deploy/releases/": "the folders of the releases, and the table of facts",
    "deploy/recipe.toml": "names the default",
    "deploy/k8s/site/": "names the release and the tags of the images that were built for it",
    "deploy/compose.yaml": "without make it names the cache of the default; a test keeps it so",
    "docker/Dockerfile": "its default base is the default release's image; a test keeps them equal",
    "patches/faults.toml": "the table of faults",
    "patches/*.patch": "a header says which release each hash is of",
    "healthcheck/figures/": "measured with the release that they name",
}


def tracked() -> list[Path]:
    """Files of the product in git, but documents."""
    listed = subprocess.run(
        ["git", "ls-files", *CODE], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    data = [re.escape(place).replace(r"\*", ".*") for place in DATA]
    is_data = re.compile("|".join(data))
    kept = [p for p in listed if not is_data.match(p) and not p.endswith((".md", ".lock"))]
    return [ROOT / path for path in kept]


def code_of(path: Path) -> dict[int, str]:
    """The lines of a file without what says where something was read: comments, strings that stand
    alone, the last column of a table."""
    text = path.read_text("utf-8", errors="replace")
    if path.suffix == ".tsv":
        return {n: line.rpartition("\t")[0] for n, line in enumerate(text.split("\n"), 1)}
    if path.suffix == ".py":
        return _python(text)
    return {n: re.sub(r"(^|\s)#.*", "", line) for n, line in enumerate(text.split("\n"), 1)}


def _python(text: str) -> dict[int, str]:
    alone = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    skipped = {line for d in alone for line in range(d.lineno, (d.end_lineno or d.lineno) + 1)}
    said: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NUMBER) or token.start[0] in skipped:
            continue
        for n, line in enumerate(token.string.split("\n"), token.start[0]):
            said[n] = f"{said.get(n, '')} {line}"
    return said


def test_no_release_stands_in_code() -> None:
    """Rules, checks, remedies, manifests and build files name none."""
    files = tracked()
    assert len(files) > 200
    named = [
        f"{path.relative_to(ROOT)}:{n}: {line.strip()[:120]}"
        for path in files
        for n, line in code_of(path).items()
        if VERSION.search(line)
    ]
    assert named == []
