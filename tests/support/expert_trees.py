"""Small vLLM trees whose AMD model has routed experts, for what the audit says of their options."""

from pathlib import Path

from tests.support import audit_trees

LAYERS = "vllm/model_executor/layers/fused_moe"
BACKEND_FILE = f"{LAYERS}/experts/backend.py"
MODEL_FILE = "vllm/models/tiny/amd/model.py"

CONFIG = """
class FusedMoEQuantConfig:
    clamp_limit: float | None = None

class FusedMoEConfig:
    num_experts: int
    limit: float | None = None
    label: str = "experts"
"""
FACTORY = """
def FusedMoE(num_experts, limit=None, label="experts", activation="silu"):
    ...
"""
ORACLE = """
def quant_config(limit):
    return FusedMoEQuantConfig(clamp_limit=limit)
"""
OPS = """
from vllm.platforms import current_platform

def only_where_supported(function):
    def wrapper(*args):
        if is_supported():
            return function(*args)
        return None
    return wrapper

def is_supported():
    if current_platform.is_rocm() and FOUND:
        return version() > 2
    return False

class ops:
    @classmethod
    @only_where_supported
    def is_enabled(cls):
        return cls.ENABLED

    @classmethod
    @only_where_supported
    def is_elsewhere(cls):
        return current_platform.is_cuda()

    @staticmethod
    def is_perhaps():
        if FOUND:
            return True

    @staticmethod
    def run(x, weights, limit=0.0, scale=1.0, label="none"):
        ...

class Other:
    def __init__(self, limit):
        ...
"""
BACKEND = """
from vllm.fast_ops import ops
from .helper import forward

class Fast:
    {body}
    @staticmethod
    def {states}():
        return "standard"

    @staticmethod
    def _supports_current_device():
        {runs}

    @staticmethod
    def _supports_activation(activation):
        {takes}

    def apply(self, x):
        {apply}
"""
HELPER = """
from vllm.fast_ops import ops

def forward(x, config):
    {forward}
"""
MODEL = """
from vllm.fast_ops import Other
from vllm.model_executor.layers.fused_moe import FusedMoE

class Layer:
    def __init__(self, config):
        self.experts = FusedMoE(8, {given})
"""
DRAFT = "from .model import Layer\n" + audit_trees.model("wanted = None")
TAKES_SILU = "return activation in [MoEActivation.SILU, MoEActivation.GELU]"


def tree(
    root: Path,
    *,
    apply: str = "return ops.run(x, self.weights)",
    forward: str = "return ops.run(x, 1)",
    given: str = "limit=config.limit",
    runs: str = "return ops.is_enabled()",
    takes: str = TAKES_SILU,
    body: str = "name = 'fast'",
    states: str = "activation_format",
    more: str = "",
    draft: str = DRAFT,
) -> Path:
    """Write a tree whose AMD draft configures `given` and whose backend's ``apply`` is `apply`.

    `forward` is the body of a helper that ``apply`` may call, `more` another backend's source,
    `states` the name of the method that every complete backend has.
    """
    audit_trees.tree(root, propose="self.model.model", amd=draft)
    backend = BACKEND.format(body=body, runs=runs, takes=takes, apply=apply, states=states)
    for path, text in (
        (f"{LAYERS}/config.py", CONFIG),
        (f"{LAYERS}/__init__.py", "from .layer import FusedMoE\n"),
        (f"{LAYERS}/layer.py", FACTORY),
        (f"{LAYERS}/oracle/fp8.py", ORACLE),
        (f"{LAYERS}/experts/__init__.py", ""),
        (f"{LAYERS}/experts/helper.py", HELPER.format(forward=forward)),
        (f"{LAYERS}/experts/other.py", more),
        (BACKEND_FILE, backend),
        ("vllm/fast_ops.py", OPS),
        (MODEL_FILE, MODEL.format(given=given)),
    ):
        audit_trees.write(root, path, text)
    return root
