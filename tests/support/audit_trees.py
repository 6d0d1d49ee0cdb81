"""Small vLLM trees, written file by file, for what real releases happen not to contain."""

import textwrap
from pathlib import Path

REGISTRY = """
_TEXT_GENERATION_MODELS = {}
_SPECULATIVE_DECODING_MODELS = {"DSparkDraftModel": ("vllm.models.tiny", "Draft")}
"""
DISPATCH = """
from vllm.platforms import current_platform

if current_platform.is_rocm():
    from .amd.dspark import Draft
else:
    from .nvidia.dspark import Draft
"""
RUNNER = """
class GPUModelRunner:
    def load_model(self):
        self.speculator.load_model(self.model)

    def sample_tokens(self):
        self.speculator.propose(self.batch)
"""
SPECULATOR = """
from vllm.model_executor.model_loader import get_model
from vllm.v1.worker.gpu.spec_decode import helpers

NAME = "wanted"


class DSparkSpeculator:
    enabled = False

    def __init__(self, config):
        self.method = config.method
        self.option = config.option

    def load_model(self, target_model):
        self.model = get_model(config=self.config)

    def propose(self, batch, aux_hidden_states=None):
{propose}

    def _helper(self, model):
        return model.wanted

{methods}
"""
HELPERS = """
from vllm.v1.worker.gpu.spec_decode.names import NAME


def read_by_name(model, name):
    return getattr(model, name)


def read_wanted(model):
    return model.wanted


def has_wanted(model):
    return hasattr(model, "wanted")
"""
MODEL = """
import torch.nn as nn
from outside import Unknown
from vllm.model_executor.models.interfaces import SupportsWanted


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
{inner}


class Draft(nn.Module{bases}):
{body}
"""
PLAIN = "def __init__(self):\n    super().__init__()\n    self.model = Inner()\n"


def write(root: Path, path: str, text: str) -> None:
    """Write one file of a tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _indented(text: str, spaces: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n") or "pass", " " * spaces)


def model(body: str = "", inner: str = "", bases: str = "") -> str:
    """Return the source of a draft class whose body holds `body` besides a constructor."""
    text = body if "def __init__" in body else PLAIN + textwrap.dedent(body)
    return MODEL.format(
        body=_indented(text, 4), inner=_indented(inner, 8), bases=f", {bases}" if bases else ""
    )


def tree(
    root: Path,
    propose: str = "self.model.wanted",
    methods: str = "",
    amd: str | None = None,
    nvidia: str | None = None,
    dispatch: str = DISPATCH,
) -> Path:
    """Write a tree in which `propose` runs; only the NVIDIA class has ``wanted`` by default."""
    spec = "vllm/v1/worker/gpu/spec_decode"
    write(root, "vllm/__init__.py", "")
    write(root, "vllm/model_executor/models/registry.py", REGISTRY)
    write(
        root,
        "vllm/model_executor/models/interfaces.py",
        "class SupportsWanted:\n    wanted = None\n",
    )
    write(root, "vllm/v1/worker/gpu/model_runner.py", RUNNER)
    write(root, f"{spec}/__init__.py", "")
    write(root, f"{spec}/helpers.py", HELPERS)
    write(root, f"{spec}/names.py", 'NAME = "wanted"\n')
    write(
        root,
        f"{spec}/dspark/speculator.py",
        SPECULATOR.format(propose=_indented(propose, 8), methods=_indented(methods, 4)),
    )
    write(root, "vllm/models/tiny/__init__.py", dispatch)
    inner = "self.wanted = 1"
    for platform, text in (
        ("nvidia", model("wanted = None", inner) if nvidia is None else nvidia),
        ("amd", model() if amd is None else amd),
    ):
        write(root, f"vllm/models/tiny/{platform}/__init__.py", "")
        write(root, f"vllm/models/tiny/{platform}/dspark.py", text)
    return root
