"""How an attribute is provided: by what, where, and under which tests."""

import ast
import re
from dataclasses import dataclass, field

from patches.audit.modules import FunctionNode, Test

NN_MODULE_ATTRIBUTES = frozenset(
    re.findall(
        r"\w+",
        """
        T_destination add_module apply bfloat16 buffers call_super_init children compile cpu
        cuda double dump_patches eval extra_repr float get_buffer get_extra_state
        get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers
        named_children named_modules named_parameters parameters register_backward_hook
        register_buffer register_forward_hook register_forward_pre_hook
        register_full_backward_hook register_full_backward_pre_hook
        register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module
        register_parameter register_state_dict_post_hook register_state_dict_pre_hook
        requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train
        training type xpu zero_grad _modules _parameters _buffers _apply __call__
        """,
    )
)
"""What every torch.nn.Module instance has (torch 2.11); its ``forward`` only raises."""
OBJECT_ATTRIBUTES = frozenset(
    ("__class__", "__dict__", "__doc__", "__module__", "__init__", "__eq__", "__hash__", "__repr__")
)


@dataclass(frozen=True)
class Provision:
    """How one class provides one attribute. `condition` is None when it always does."""

    kind: str
    where: str
    owner: str
    condition: str | None = None
    method: FunctionNode | None = field(default=None, repr=False, compare=False)


def test_text(test: Test) -> str:
    """Render a test and the outcome it needs, on one line."""
    text = ast.unparse(test[0])
    return text if test[1] else f"not ({text})"


def cover_everything(branches: list[tuple[Test, ...]]) -> bool:
    """Whether the branches between them are taken whatever the tests give."""
    if any(not branch for branch in branches):
        return True
    if not branches:
        return False
    first = ast.dump(branches[0][0][0])
    same = [branch for branch in branches if ast.dump(branch[0][0]) == first]
    return all(
        cover_everything([branch[1:] for branch in same if branch[0][1] is outcome])
        for outcome in (True, False)
    )
