"""``python3 -m patches compile TREE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import recipe
from deploy.recipe import RecipeError
from patches import series
from patches.compile import proof, render
from patches.errors import PatchesError, TreeError
from patches.loadcheck.card import CARDS
from patches.tree import find

OK, FAILED, MISUSE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Compile and print; return the exit code.

    0: every kernel was compiled and fits its card. 1: one was not, or the series does not fit the
    tree. 2: the command cannot be carried out.
    """
    asked = _parser().parse_args(arguments)
    try:
        loaded = recipe.load()
        chosen = [loaded.profile(name) for name in asked.profile or loaded.profiles]
        archs = asked.arch or [
            arch for arch in CARDS if arch in {p.gpu.arch for p in chosen if p.gpu is not None}
        ]
        cards = proof.cards(chosen, archs)
        version = find(asked.root).version or "of unknown release"
        found = proof.prove(asked.root, series.load(), cards, only_touched=asked.touched)
    except (RecipeError, TreeError, proof.CardsError) as error:
        return _fail(str(error), MISUSE)
    except PatchesError as error:
        return _fail(str(error), FAILED)
    match asked.format:
        case "json":
            print(json.dumps(found.as_data(), indent=2))
        case "markdown":
            print(render.as_markdown(found, version), end="")
        case _:
            print(render.as_text(found))
    if found.faults:
        return _fail(f"compile: {len(found.faults)} faults, the first: {found.faults[0]}", FAILED)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m patches compile",
        description="Compile every Triton kernel that a profile's path launches to code of its "
        "card, with the series applied, without a GPU. Needs torch, Triton and what vLLM imports; "
        "changes nothing in the tree.",
    )
    parser.add_argument(
        "root",
        type=Path,
        metavar="TREE",
        help="the folder that holds vllm/ (site-packages or a checkout), or the vllm folder itself",
    )
    parser.add_argument(
        "--arch",
        action="append",
        choices=CARDS,
        help="compile for this architecture; may be repeated (without it: all of the profiles)",
    )
    parser.add_argument(
        "--profile",
        action="append",
        metavar="P",
        help="with this profile's shapes; may be repeated (without it: every profile of a card)",
    )
    parser.add_argument(
        "--touched", action="store_true", help="only the kernels that the series changes"
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    return parser


def _fail(message: str, code: int) -> int:
    print(f"patches: {message}", file=sys.stderr)
    return code
