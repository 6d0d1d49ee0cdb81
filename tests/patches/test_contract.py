"""The contract of a draft class, as the load check asks for it."""

import pytest

from deploy import recipe
from patches import apply, series
from patches.audit.contract import Item, contract
from patches.audit.tree import MisuseError, open_tree
from tests.support import vllm_trees

DSPARK = "DSparkDraftModel"
ATTRIBUTE = "draft_id_to_target_id"


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Item]]:
    """The items of the unpatched and of the patched release, by path."""
    pristine = vllm_trees.tree("0.27.1")
    patched = vllm_trees.link_copy(pristine, tmp_path_factory.mktemp("trees") / "patched")
    apply.apply(patched, series.load())
    return {
        name: {item.path: item for item in contract(open_tree(tree), DSPARK, "amd").items}
        for name, tree in (("pristine", pristine), ("patched", patched))
    }


def test_what_shared_code_reads_is_listed(items: dict[str, dict[str, Item]]) -> None:
    """Hooks that are called, sub-objects that are shared, and flags with their values."""
    patched = items["patched"]
    for path in ("compute_draft_logits", "markov_embed", "markov_bias", "forward", ATTRIBUTE):
        assert patched[path].is_required, path
        assert patched[path].on_class, path
    for path in ("model", "model.embed_tokens", "lm_head"):
        assert patched[path].is_required, path
        assert not patched[path].on_class, path
    flag = patched["has_own_lm_head"].as_data()
    assert (flag["is_required"], flag["value"]) == (False, False)


def test_a_value_is_told_when_the_source_gives_one(items: dict[str, dict[str, Item]]) -> None:
    """Patched, the attribute of PR 51145 is None; unpatched it is asked for all the same."""
    assert items["patched"][ATTRIBUTE].as_data()["value"] is None
    unpatched = items["pristine"][ATTRIBUTE]
    assert "value" not in unpatched.as_data()
    assert unpatched.on_class
    assert unpatched.condition == "self.draft_logits is not None"
    assert "value" not in items["patched"]["lm_head"].as_data()


def test_a_check_that_would_prove_nothing_is_refused() -> None:
    """No such draft, and no class on the platform, are told in one line."""
    with pytest.raises(MisuseError, match="names no draft NoDraft"):
        contract(open_tree(vllm_trees.tree("0.27.1")), "NoDraft", "amd")
    with pytest.raises(MisuseError, match=f"{DSPARK} on amd: "):
        contract(open_tree(vllm_trees.tree("0.25.1")), DSPARK, "amd")


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_what_the_recipes_options_keep_out_of_reach_is_not_asked_for(version: str) -> None:
    """The recipe does not verify adaptively; a server that does is asked for the confidence head."""
    tree = open_tree(vllm_trees.tree(version))
    (table,) = recipe.load().drafts
    for given, is_asked in (
        (table, False),
        ({**table, "enable_adaptive_verification": True}, True),
    ):
        items = {i.path: i for i in contract(tree, DSPARK, "amd", given).items if i.is_required}
        assert ("compute_confidence" in items) is is_asked
        assert ATTRIBUTE in items
