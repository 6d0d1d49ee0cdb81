"""`python3 -m deploy.upstream`: one page of what a move to another vLLM needs, or its names."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import environment, programs
from deploy.environment import SetupError
from deploy.files import write_whole
from deploy.recipe import RecipeError
from deploy.upstream import names, page, survey, wheel
from deploy.upstream.names import NamesError
from patches import tree
from patches.errors import PatchesError

OUT = environment.ROOT / "build" / "upstream"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, ask, and write the page; 0 whatever it says, 1 could not be made, 2 misused."""
    parser = argparse.ArgumentParser(prog="python3 -m deploy.upstream", description=__doc__)
    parser.add_argument(
        "--version", default="", metavar="VERSION", help="the release (default: the newest)"
    )
    parser.add_argument(
        "--tree", type=Path, metavar="TREE", help="sources that are here: the folder of vllm/"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default: build/upstream/VERSION.md)"
    )
    parser.add_argument(
        "--vocabulary",
        action="store_true",
        help="write the names that it knows to its folder of deploy/releases, and no page",
    )
    options = parser.parse_args(arguments)
    if options.version and options.tree:
        parser.error("--version: got a tree too; give one of them")
    if options.version and not re.fullmatch(r"\d+(\.\d+)*\w*", options.version):
        parser.error(f"--version: got {options.version!r}; give a release's number, as pip does")
    try:
        root = options.tree or _fetched(options.version or None)
        if options.vocabulary:
            print(f"vocabulary: {names.write(tree.find(root).package.parent)}")
            return 0
        made = survey.make(root)
        file = options.out or OUT / f"{made.version}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, page.page(made))
    except (NamesError, PatchesError, RecipeError, SetupError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    for line in made.needs():
        print(f"to do: {line}")
    print(f"page: {file}")
    return 0


def _fetched(version: str | None) -> Path:
    what = version or "the newest release"
    print(f"upstream: the wheel of {what} (about 340 MB to download)", file=sys.stderr, flush=True)
    return wheel.fetch(version, environment.cache_dir() / "upstream")


def _fail(message: str) -> int:
    print(f"upstream: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    programs.run(main)
