"""`python3 -m deploy engine-config`: vLLM judges the plan before any weight is read.

The argv that would be served goes through vLLM's own parser and becomes its engine configuration,
in this process and with the environment of the plan. That takes seconds; the server would say the
same after its processes are up. Needs vLLM importable and the model's config.json and tokenizer.

On another platform than ROCm some questions are decided by that platform's code instead of AMD's;
they are listed as not judged.

Exit codes: 0 accepted, 1 refused, 2 misused.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from deploy import collector, plan, recipe
from deploy.plan import PlanError
from deploy.programs import Misuse, Parser
from deploy.recipe import RecipeError, serve_parser, switches

# Decided by vllm/platforms/rocm.py and by AITER, which only a ROCm build runs.
ROCM_ONLY = (
    "attention and MoE backends (AITER)",
    "whether the card supports the quantization",
    "graph mode and compilation passes",
    "GPU memory and KV cache size",
)


class Complaint(ValueError):
    """vLLM refuses; the message is one line in vLLM's words."""


@dataclass(frozen=True)
class Resolved:
    """What vLLM made of the argv; None where the plan does not draft.

    `quantization` and `draft_quantization` name the classes that will load the weights.
    """

    platform: str
    runner: str
    quantization: str | None
    draft_quantization: str | None
    draft_architecture: str | None
    draft_sample_method: str | None
    num_speculative_tokens: int | None
    dspark_block_size: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int
    cudagraph_mode: str
    kv_cache_dtype: str
    block_size: int | None
    not_judged: tuple[str, ...]


def main(argv: list[str]) -> int:
    """Plan, let vLLM judge, print the answer; returns the exit code."""
    try:
        args = _parser().parse_args(argv)
        made = _plan(args)
    except SystemExit as e:  # --help
        return int(e.code or 0)
    except (Misuse, RecipeError) as e:
        print(f"engine-config: {e}", file=sys.stderr)
        return 2
    except PlanError as e:
        print(f"engine-config: {e}", file=sys.stderr)
        return 1
    words = list(made.argv)
    if args.model is not None:
        words[2] = str(args.model)
    os.environ.update(made.env)
    _quieten(os.environ)
    try:
        resolved = judge(words)
    except Complaint as e:
        print(f"engine-config: vLLM refuses profile {made.profile}: {e}", file=sys.stderr)
        return 1
    print(render(made.profile, resolved, args.format))
    return 0


def judge(argv: Sequence[str]) -> Resolved:
    """Build the engine configuration of `vllm serve MODEL FLAGS`. Raises Complaint."""
    if importlib.util.find_spec("vllm") is None:
        raise Complaint(f"vllm is not installed for {sys.executable}; run in the image")
    try:
        config = _engine_config(argv[2:])
        resolved = _resolve(config)
    except Complaint:
        raise
    except Exception as e:  # whatever vLLM raises is its answer
        raise Complaint(complaint(e)) from e
    if resolved.draft_quantization != resolved.quantization and _drafts_from_target(config):
        raise Complaint(
            f"the draft would load with {resolved.draft_quantization}, the target with"
            f" {resolved.quantization}: KeyError w13_weight_scale (issues 51758, 51916); leave"
            " model out of the speculative config"
        )
    return resolved


def complaint(error: Exception) -> str:
    """An exception in one line; pydantic's are told by their messages alone."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        told = [str(e["msg"]).removeprefix("Value error, ") for e in errors()]
    else:
        told = [str(error) or type(error).__name__]
    if isinstance(error, KeyError):
        told = [f"KeyError {error}"]
    return " ".join("; ".join(told).split())


def render(profile: str, resolved: Resolved, form: str) -> str:
    """The answer as text or JSON."""
    table = dataclasses.asdict(resolved)
    if form == "json":
        return json.dumps({"profile": profile, "accepted": True, **table}, indent=2)
    not_judged = table.pop("not_judged")
    lines = [f"OK: vLLM accepts profile {profile}"]
    lines += [f"  {name}: {value}" for name, value in table.items() if value is not None]
    if not_judged:
        lines.append(f"  AMD-only, not judged on {resolved.platform}: {'; '.join(not_judged)}")
    return "\n".join(lines)


def _engine_config(words: Sequence[str]) -> Any:
    """Parse and build as `vllm serve` does (0.27.1, entrypoints/cli/serve.py)."""
    collector.rest()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Refusing(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise Complaint(message)

    parser = serve_parser.module()
    args = parser.make_arg_parser(Refusing()).parse_args(list(words))
    args.model = args.model_tag
    parser.validate_parsed_serve_args(args)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    return engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def _resolve(config: Any) -> Resolved:
    from vllm.model_executor.models.utils import get_draft_quant_config
    from vllm.platforms import current_platform

    draft = config.speculative_config
    draft_model = draft.draft_model_config if draft else None
    hf = draft_model.hf_config if draft_model else None
    return Resolved(
        platform="rocm" if current_platform.is_rocm() else str(current_platform.device_type),
        runner="V2" if config.use_v2_model_runner else "V1",
        quantization=_class_name(config.quant_config),
        draft_quantization=_class_name(get_draft_quant_config(config)) if draft_model else None,
        draft_architecture=draft_model.architectures[0] if draft_model else None,
        draft_sample_method=draft.draft_sample_method if draft else None,
        num_speculative_tokens=draft.num_speculative_tokens if draft else None,
        dspark_block_size=getattr(hf, "dspark_block_size", getattr(hf, "block_size", None)),
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        pipeline_parallel_size=config.parallel_config.pipeline_parallel_size,
        max_model_len=config.model_config.max_model_len,
        cudagraph_mode=getattr(config.compilation_config.cudagraph_mode, "name", "NONE"),
        kv_cache_dtype=str(config.cache_config.cache_dtype),
        block_size=config.cache_config.block_size,
        not_judged=() if current_platform.is_rocm() else ROCM_ONLY,
    )


def _drafts_from_target(config: Any) -> bool:
    """Whether draft and target are one checkpoint, which is quantized one way."""
    draft = config.speculative_config
    if draft is None or draft.draft_model_config is None:
        return False
    return bool(draft.draft_model_config.model == config.model_config.model)


def _class_name(value: object) -> str | None:
    return None if value is None else type(value).__name__


def _quieten(environ: MutableMapping[str, str]) -> None:
    """Leave stdout to the answer; a level that the user set stays."""
    environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    warnings.simplefilter("ignore")


def _plan(args: argparse.Namespace) -> plan.Plan:
    loaded = recipe.load(switches.recipe_file(os.environ))
    if not args.profile:
        raise Misuse(f"--profile: got none; it is one of {', '.join(loaded.profiles)}")
    profile = loaded.profile(args.profile)
    speculates = switches.speculation(os.environ)
    graphs = switches.graphs(os.environ)
    return plan.make(profile, args.extra, os.environ, speculates, graphs)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m deploy engine-config", description=__doc__)
    parser.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"))
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--model", type=Path, help="judge with the config.json of this folder instead"
    )
    parser.add_argument("extra", nargs="*", metavar="FLAG", help="extra server flags, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
