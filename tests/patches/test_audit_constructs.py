"""Every language construct that reads, guards or provides an attribute, one at a time.

The AMD class of a small tree lacks what the NVIDIA class has; each row is one way shared code asks
for it, or one way the AMD class may come by it.
"""

from pathlib import Path

import pytest

from patches.audit.audit import Scope, audit
from patches.audit.gap import Gap
from patches.audit.tree import open_tree
from tests.support import audit_trees

CRASH, CONDITIONAL = "crash", "crash-conditional"
MISSING, UNRESOLVED = "feature-missing", "unresolved"


def amd_gaps(root: Path) -> dict[str, Gap]:
    """Audit a small tree; return the gaps of the AMD draft class by attribute."""
    report = audit(open_tree(root), Scope())
    return {gap.attribute: gap for gap in report.gaps if gap.platform == "amd"}


READS = {
    "attribute": "self.model.wanted",
    "call": "self.model.wanted()",
    "through a local name": "draft = self.model\ndraft.wanted",
    "through a walrus": "(draft := self.model).wanted",
    "through a cast": "cast(Draft, self.model).wanted",
    "through an attribute of the speculator": "self.kept = self.model\nself.kept.wanted",
    "through a loop over models": "for m in (self.model,):\n    m.wanted",
    "in a comprehension": "[self.model.wanted for _ in batch]",
    "in a lambda": "lambda: self.model.wanted",
    "in a nested function": "def inner():\n    return self.model.wanted",
    "in a method it is passed to": "self._helper(self.model)",
    "in a method handed on": "batch.run(self._later)",
    "in a property": "self.looked_up",
    "in an imported function": "helpers.read_wanted(self.model)",
    "by a name passed along": "helpers.read_by_name(self.model, 'wanted')",
    "by a name in a constant": "getattr(self.model, NAME)",
    "by a name imported in a function": "from vllm.v1.worker.gpu.spec_decode.names import NAME as N\ngetattr(self.model, N)",
    "by a name in a local variable": "n = 'wanted'\ngetattr(self.model, n)",
    "by names in a loop": "for n in ('model', 'wanted'):\n    getattr(self.model, n)",
    "deleted": "del self.model.wanted",
    "deleted by name": "delattr(self.model, 'wanted')",
    "asserted": "assert self.model.wanted",
    "another exception is caught": "try:\n    self.model.wanted\nexcept KeyError:\n    pass",
    "a condition inside a while does not leak": "while batch:\n    if self.option:\n        break\nself.model.wanted",
    "the way with fewer conditions counts": "if self.option:\n    self._helper(self.model)\nself._helper(self.model)",
    "under the method in use": "if self.method == 'dspark':\n    self.model.wanted",
    "on this platform": "if current_platform.is_rocm():\n    self.model.wanted",
    "below the inner model": "self.model.model.wanted",
    "isinstance of its own class": (
        "from vllm.models.tiny.amd.dspark import Draft\n"
        "if isinstance(self.model, Draft):\n    self.model.wanted"
    ),
}
"""What ``propose`` does that ends in a crash."""

GUARDED = {
    "getattr with a default": "getattr(self.model, 'wanted', None)",
    "hasattr": "hasattr(self.model, 'wanted')",
    "behind hasattr": "if hasattr(self.model, 'wanted'):\n    self.model.wanted()",
    "behind hasattr in an and": "hasattr(self.model, 'wanted') and self.model.wanted",
    "behind hasattr in an or": "not hasattr(self.model, 'wanted') or self.model.wanted",
    "behind a conditional expression": "self.model.wanted if hasattr(self.model, 'wanted') else None",
    "behind an early return": "if not hasattr(self.model, 'wanted'):\n    return\nself.model.wanted",
    "behind a flag of the speculator": (
        "self.enabled = batch and hasattr(self.model, 'wanted')\n"
        "if self.enabled:\n    self.model.wanted"
    ),
    "behind a local flag": "has = hasattr(self.model, 'wanted')\nif has:\n    self.model.wanted",
    "behind a predicate": "hasattr(self.model, 'wanted')\nif helpers.has_wanted(self.model):\n    self.model.wanted",
    "behind a default that is tested": "w = getattr(self.model, 'wanted', None)\nif w is not None:\n    del self.model.wanted",
    "refused with a message": (
        "if not hasattr(self.model, 'wanted'):\n    raise ValueError('no wanted')\n"
        "self.model.wanted"
    ),
    "AttributeError is caught": "try:\n    self.model.wanted\nexcept AttributeError:\n    pass",
    "AttributeError is caught around a call": "try:\n    self._helper(self.model)\nexcept (TypeError, AttributeError):\n    pass",
    "a trial call clears a flag": (
        "try:\n    self.model.wanted()\nexcept AttributeError:\n    self.enabled = False\n"
        "if self.enabled:\n    self.model.wanted()"
    ),
}
"""What it may ask for without one."""

UNDER_A_CONDITION = {
    "under an option": ("if self.option:\n    self.model.wanted", "self.option"),
    "under an option that is set": (
        "if self.option is not None:\n    self.model.wanted",
        "self.option is not None",
    ),
    "in the else branch": (
        "if self.option:\n    pass\nelse:\n    self.model.wanted",
        "not (self.option)",
    ),
    "after an early return": (
        "if self.option:\n    return\nself.model.wanted",
        "not (self.option)",
    ),
    "after a continue in a while": (
        "while batch:\n    if self.option:\n        continue\n    self.model.wanted",
        "not (self.option)",
    ),
    "conditions add up": (
        "if self.option and batch:\n    self.model.wanted",
        "self.option and batch",
    ),
    "the model on one branch only": (
        "m = None\nif self.option:\n    m = self.model\nm.wanted",
        "self.option",
    ),
}
"""What ends in a crash where the condition holds."""

SAFE = {
    "stored before": "self.model.wanted = 1\nself.model.wanted",
    "stored by name": "setattr(self.model, 'wanted', 1)\nself.model.wanted",
    "another method": "if self.method == 'eagle':\n    self.model.wanted",
    "another method among several": "if self.method in ('mtp', 'eagle'):\n    self.model.wanted",
    "another platform": "if current_platform.is_cuda():\n    self.model.wanted",
    "never true": "if False:\n    self.model.wanted",
    "a constant flag": "if self.enabled:\n    self.model.wanted",
    "after the method returned": "return\nself.model.wanted",
    "another class": "from vllm.models.tiny.nvidia.dspark import Draft\n"
    "if isinstance(self.model, Draft):\n    self.model.wanted",
    "another object": "batch.model.wanted",
    "not called by the runner": "pass",
    "every module has it": "self.model.named_parameters()",
    "every object has it": "self.model.__class__.__name__",
    "every platform has it": "self.model.model",
    "a deeper object": "self.model.model.layers.wanted",
}
"""What ``propose`` may do without a gap."""

METHODS = """
def _later(self):
    return self.model.wanted

@property
def looked_up(self):
    return self.model.wanted

def unused(self):
    return self.model.wanted
"""


@pytest.mark.parametrize("name", [*READS, *GUARDED, *UNDER_A_CONDITION])
def test_a_read_is_found_with_its_condition(name: str, tmp_path: Path) -> None:
    """Each way of reading an attribute the AMD class lacks has its severity and condition."""
    severity = CRASH if name in READS else MISSING if name in GUARDED else CONDITIONAL
    code, condition = UNDER_A_CONDITION.get(name, ((READS | GUARDED).get(name, ""), ""))
    gaps = amd_gaps(audit_trees.tree(tmp_path, code, METHODS))
    (gap,) = gaps.values()
    assert gap.attribute in ("wanted", "model.wanted")
    assert (gap.severity.value, gap.providers) == (severity, ("nvidia",))
    if severity != MISSING:
        assert gap.condition == condition


@pytest.mark.parametrize("name", SAFE)
def test_what_cannot_fail_is_not_reported(name: str, tmp_path: Path) -> None:
    """Code that cannot reach a missing attribute gives no gap on AMD."""
    assert amd_gaps(audit_trees.tree(tmp_path, SAFE[name], METHODS)) == {}


def test_a_name_that_cannot_be_told_is_said(tmp_path: Path) -> None:
    """A getattr whose name is computed is reported as unresolved, which fails nothing."""
    report = audit(
        open_tree(audit_trees.tree(tmp_path, "getattr(self.model, batch.name)")), Scope()
    )
    (gap,) = [gap for gap in report.gaps if gap.platform == "amd"]
    assert (gap.severity.value, gap.attribute) == (UNRESOLVED, "<batch.name>")
    assert not report.fails(gap)


PROVIDED = {
    "class attribute": "wanted = None",
    "annotated class attribute": "wanted: int | None = None",
    "method": "def wanted(self): ...",
    "async method": "async def wanted(self): ...",
    "property": "@property\ndef wanted(self): ...",
    "nested class": "class wanted: ...",
    "unpacked class attributes": "other, wanted = 1, 2",
    "in the constructor": "def __init__(self):\n    self.wanted = 1",
    "annotated in the constructor": "def __init__(self):\n    self.wanted: int = 1",
    "unpacked in the constructor": "def __init__(self):\n    self.other, self.wanted = 1, 2",
    "in a method the constructor calls": (
        "def __init__(self):\n    self._build()\ndef _build(self):\n    self.wanted = 1"
    ),
    "on both branches": (
        "def __init__(self):\n    if a:\n        self.wanted = 1\n    else:\n        self.wanted = 2"
    ),
    "on one branch": "def __init__(self):\n    if a:\n        self.wanted = 1",
    "on this platform": (
        "def __init__(self):\n    if current_platform.is_rocm():\n        self.wanted = 1"
    ),
    "in a later method": "def load_weights(self):\n    self.wanted = 1",
    "registered buffer": "def __init__(self):\n    self.register_buffer('wanted', None)",
    "registered module": "def __init__(self):\n    self.add_module('wanted', None)",
    "setattr": "def __init__(self):\n    setattr(self, 'wanted', 1)",
    "setattr with a matching pattern": "def __init__(self):\n    setattr(self, f'want{x}', 1)",
    "setattr with an unknown name": "def __init__(self):\n    setattr(self, x, 1)",
    "__getattr__": "def __getattr__(self, name): ...",
    "class attribute on this platform": "if current_platform.is_rocm():\n    wanted = None",
}
"""What the AMD class body may hold so that ``wanted`` is no gap."""

PARTLY = {"on one branch": "if a", "in a later method": "only once load_weights() ran"}

NOT_PROVIDED = {
    "bare annotation": "wanted: int",
    "a local variable": "def __init__(self):\n    wanted = 1",
    "an attribute of something else": "def __init__(self):\n    other.wanted = 1",
    "class attribute on another platform": "if current_platform.is_cuda():\n    wanted = None",
    "in the constructor on another platform": (
        "def __init__(self):\n    if current_platform.is_cuda():\n        self.wanted = 1"
    ),
    "setattr with another pattern": "def __init__(self):\n    setattr(self, f'layer{x}', 1)",
}


@pytest.mark.parametrize("name", PROVIDED)
def test_a_provision_is_found(name: str, tmp_path: Path) -> None:
    """Each way a class may come by an attribute closes the gap."""
    amd = audit_trees.model(PROVIDED[name])
    gaps = amd_gaps(audit_trees.tree(tmp_path, amd=amd))
    assert gaps.keys() == ({"wanted"} if name in PARTLY else set())


@pytest.mark.parametrize("name", PARTLY)
def test_an_attribute_that_is_only_sometimes_set_is_said(name: str, tmp_path: Path) -> None:
    """What is set under a condition here and always elsewhere is noted, and fails nothing."""
    amd = audit_trees.model(PROVIDED[name])
    report = audit(open_tree(audit_trees.tree(tmp_path, amd=amd)), Scope("amd"))
    (gap,) = report.gaps
    assert (gap.severity.value, gap.note) == ("partly-provided", f"set {PARTLY[name]}")
    assert not report.fails(gap)


@pytest.mark.parametrize("name", NOT_PROVIDED)
def test_what_provides_nothing_is_not_taken_for_it(name: str, tmp_path: Path) -> None:
    """What only looks like an attribute of the instance leaves the gap open."""
    amd = audit_trees.model(NOT_PROVIDED[name])
    assert amd_gaps(audit_trees.tree(tmp_path, amd=amd))["wanted"].severity.value == CRASH


BASES = {
    "base in the tree": ("SupportsWanted", False),
    "base outside the tree": ("Unknown", False),
    "generic base": ("Generic[T]", True),
    "abstract base": ("ABC", True),
}


@pytest.mark.parametrize("name", BASES)
def test_bases_are_searched(name: str, tmp_path: Path) -> None:
    """A base of the tree is searched; one outside it leaves open what the class has."""
    base, is_gap = BASES[name]
    amd = audit_trees.model(bases=base)
    assert ("wanted" in amd_gaps(audit_trees.tree(tmp_path, amd=amd))) == is_gap


DISPATCHES = {
    "else branch first": (
        "if not current_platform.is_rocm():\n    from .nvidia.dspark import Draft\n"
        "else:\n    from .amd.dspark import Draft"
    ),
    "device type": (
        "if current_platform.device_type == 'tpu':\n    Draft = None\n"
        "elif current_platform.is_cuda():\n    from .nvidia.dspark import Draft\n"
        "else:\n    from .amd.dspark import Draft"
    ),
    "for type checkers": (
        "if TYPE_CHECKING:\n    from .nvidia.dspark import Draft\n"
        "elif current_platform.is_rocm():\n    from .amd.dspark import Draft\n"
        "else:\n    from .nvidia.dspark import Draft"
    ),
    "renamed": (
        "if current_platform.is_rocm():\n    from .amd.dspark import Draft as Chosen\n"
        "else:\n    from .nvidia.dspark import Draft as Chosen\nDraft = Chosen"
    ),
    "on first use": (
        "def __getattr__(name):\n    if name == 'Draft':\n"
        "        if current_platform.is_rocm():\n            from .amd import dspark\n"
        "            return dspark.Draft\n        from .nvidia import dspark\n"
        "        return dspark.Draft\n    raise AttributeError(name)"
    ),
    "on first use by getattr": (
        "__all__ = ['Draft']\ndef __getattr__(name):\n    if name in __all__:\n"
        "        if current_platform.is_rocm():\n            from .amd import dspark as chosen\n"
        "        else:\n            from .nvidia import dspark as chosen\n"
        "        return getattr(chosen, name)\n    raise AttributeError(name)"
    ),
    "on first use from a table": (
        "def __getattr__(name):\n    if name in {'Draft'}:\n"
        "        if current_platform.is_rocm():\n            from .amd.dspark import Draft\n"
        "        else:\n            from .nvidia.dspark import Draft\n"
        "        return {'Draft': Draft}[name]\n    raise AttributeError(name)"
    ),
}


@pytest.mark.parametrize("name", DISPATCHES)
def test_the_class_of_a_platform_is_found(name: str, tmp_path: Path) -> None:
    """Each way a package picks the class of a platform leads to the AMD class."""
    gap = amd_gaps(audit_trees.tree(tmp_path, dispatch=DISPATCHES[name]))["wanted"]
    assert gap.class_name == "vllm.models.tiny.amd.dspark.Draft"


NO_CLASS = {
    "none": "Draft = None",
    "not bound": "pass",
    "the package refuses to be imported": "raise NotImplementedError('not on ROCm')",
}


@pytest.mark.parametrize("name", NO_CLASS)
def test_a_platform_without_a_class_is_said(name: str, tmp_path: Path) -> None:
    """A platform for which a package has no class is reported, and fails the absolute check only."""
    dispatch = (
        f"if current_platform.is_rocm():\n    {NO_CLASS[name]}\n"
        "else:\n    from .nvidia.dspark import Draft"
    )
    root = open_tree(audit_trees.tree(tmp_path, dispatch=dispatch))
    report = audit(root, Scope())
    (gap,) = [gap for gap in report.gaps if gap.platform == "amd"]
    assert gap.severity.value == "no-class"
    assert not report.fails(gap)
    absolute = audit(root, Scope("amd", "DSparkDraftModel"))
    assert [absolute.fails(gap) for gap in absolute.gaps] == [True]


def test_a_class_that_only_raises_is_a_stub(tmp_path: Path) -> None:
    """A class whose constructor raises is reported with its message instead of every attribute."""
    amd = audit_trees.model(
        "def __init__(self):\n    super().__init__()\n    raise NotImplementedError('not on AMD')"
    )
    gaps = amd_gaps(audit_trees.tree(tmp_path, amd=amd))
    assert [gap.severity.value for gap in gaps.values()] == ["stub"]
    assert "NotImplementedError: not on AMD" in gaps["-"].note


def test_what_every_platform_lacks_is_a_gap_of_the_absolute_check_only(tmp_path: Path) -> None:
    """Without a platform that has it an attribute is no difference, but it is still missing."""
    root = open_tree(audit_trees.tree(tmp_path, "self.model.nobody_has_this"))
    assert audit(root, Scope()).gaps == ()
    (gap,) = audit(root, Scope("amd", "DSparkDraftModel")).gaps
    assert (gap.attribute, gap.severity.value, gap.providers) == ("nobody_has_this", CRASH, ())


CALLS = {
    "self.model.wanted(1, 2)": "takes 1 positional arguments, is given 2",
    "self.model.wanted(1, c=2)": "does not take the keyword c",
    "self.model.wanted()": "is not given a",
    "self.model.wanted(1)": None,
    "self.model.wanted(a=1)": None,
    "self.model.wanted(*batch)": None,
    "self.model.wanted(**batch)": None,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_the_method_does_not_take_is_a_gap(call: str, tmp_path: Path) -> None:
    """A method that cannot be called as shared code does is reported where another's can."""
    nvidia = audit_trees.model("def wanted(self, *args, **kwargs): ...")
    amd = audit_trees.model("def wanted(self, a): ...")
    gaps = amd_gaps(audit_trees.tree(tmp_path, call, amd=amd, nvidia=nvidia))
    assert {gap.note for gap in gaps.values()} == ({CALLS[call]} if CALLS[call] else set())


def test_an_explanation_says_how_the_model_came_to_the_read(tmp_path: Path) -> None:
    """The explanation names the calls, the value's history, the condition and the classes searched."""
    code = "if self.option:\n    helpers.read_wanted(self.model)"
    gap = amd_gaps(audit_trees.tree(tmp_path, code))["wanted"]
    text = "\n".join(gap.explanation)
    for part in (
        "way: DSparkSpeculator.propose() is called by the runner",
        "DSparkSpeculator.propose() calls read_wanted()",
        "get_model(...) returns the draft model",
        "passed to read_wanted() as model",
        "read_wanted() reads wanted",
        "condition: self.option",
        "searched: vllm.models.tiny.amd.dspark.Draft (vllm/models/tiny/amd/dspark.py:",
        "searched: torch.nn.Module",
    ):
        assert part in text
