"""Whether patterns name the routed experts of a layer."""

import pytest

from moe_core.ingest.quant.modules import Coverage, Patterns, Place

NONE, SOME, ALL = Coverage.NONE, Coverage.SOME, Coverage.ALL
LAYER_7 = Place(7)


@pytest.mark.parametrize(
    ("pattern", "coverage"),
    [
        # plain names
        ("lm_head", NONE),
        ("gate", NONE),
        ("mlp.gate", NONE),
        ("model.layers.7.mlp.gate", NONE),
        ("model.layers.7.mlp.shared_experts", NONE),
        ("model.layers.7.self_attn.q_proj", NONE),
        ("model.layers.7.input_layernorm", NONE),
        ("model.layers.6", NONE),
        ("model.layers.77", NONE),
        ("model.layers.7", ALL),
        ("layers.7", ALL),
        ("backbone.layers.7.mixer", ALL),
        ("backbone.layers.7.mixer.in_proj", NONE),
        ("model.language_model.layers.7.mlp.experts", ALL),
        ("model.layers.7.block_sparse_moe.experts", ALL),
        ("vision_tower.encoder.layers.7.mlp", NONE),
        ("model.layers.7.mlp.experts.0.gate_proj", SOME),
        ("model.layers.7.mlp.experts.gate_up_proj", SOME),
        ("model.layers.7.mlp.experts.3", NONE),
        ("mlp", ALL),
        ("experts", ALL),
        ("mlp.experts", ALL),
        ("model", ALL),
        ("gate_proj", SOME),
        ("Linear", ALL),
        ("Conv1d", NONE),
        # globs
        ("model.layers.7*", ALL),
        ("model.layers.6*", NONE),
        ("model.layers.*", ALL),
        ("model.layers.*.self_attn", NONE),
        ("model.layers.*.mlp.router", NONE),
        ("model.layers.*.mlp", ALL),
        ("*mlp.gate.*", NONE),
        ("*.experts.*", ALL),
        ("*experts*", ALL),
        ("*shared_experts*", NONE),
        ("*down_proj", SOME),
        ("model.layers.[0-6].*", NONE),
        ("model.layers.[67].*", ALL),
        ("*self_attn*", NONE),
        ("mtp*", NONE),
        # regular expressions
        (r"re:.*self_attn.*", NONE),
        (r"re:.*shared_experts.*", NONE),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", NONE),
        (r"re:.*mlp\.experts\..*", ALL),
        (r"re:.*layers\.[0-6]\..*", NONE),
        (r"re:.*layers\.(3|7)\..*", ALL),
        (r"re:model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w[123]$", ALL),
        (r"re:.*\.w1", SOME),
        (r"re:layers", ALL),
        (r"re:experts", NONE),
    ],
)
def test_one_pattern(pattern, coverage):
    assert Patterns([pattern]).cover(LAYER_7) is coverage


def test_patterns_add_up():
    three = ["gate_proj", "*.up_proj", r"re:.*down_proj"]
    assert Patterns(three).cover(LAYER_7) is ALL
    assert Patterns(three[:1]).cover(LAYER_7) is SOME
    assert Patterns([]).cover(LAYER_7) is NONE


def test_experts_that_are_not_gated_have_two_projections():
    names = [f"backbone.layers.7.mixer.experts.0.{name}" for name in ("up_proj", "down_proj")]
    assert Patterns(names).cover(LAYER_7) is ALL


@pytest.mark.parametrize("pattern", ["*layers.7.*", "model.layers.7*", r"re:.*layers\.7\.", "model.layers.7"])
def test_only_the_layer_that_is_named(pattern):
    patterns = Patterns([pattern])
    covered = [layer for layer in range(80) if patterns.cover(Place(layer)) is ALL]
    assert covered == ([7, *range(70, 80)] if pattern == "model.layers.7*" else [7])


def test_a_pattern_without_digits_may_still_count_them():
    patterns = Patterns([r"re:model\.layers\.\d\."])
    assert [layer for layer in (3, 9, 10, 42) if patterns.cover(Place(layer)) is ALL] == [3, 9]


@pytest.mark.parametrize(
    ("pattern", "coverage"),
    [
        ("mtp", ALL),
        ("mtp*", ALL),
        ("re:^mtp.*", ALL),
        ("mtp.layers.1", ALL),
        ("mtp.layers.0", NONE),
        ("mtp.layers.0*", NONE),
        ("mtp.layers.1*", ALL),
        ("model.mtp.layers.1.mlp", ALL),
        ("mtp.fc", NONE),
        ("model.layers.62*", ALL),
        ("model.layers.62", ALL),
        ("model.layers.61*", NONE),
        ("model.layers.1", NONE),
        ("experts", ALL),
    ],
)
def test_draft_layers_have_two_names(pattern, coverage):
    assert Patterns([pattern]).cover(Place(62, draft=1)) is coverage


def test_an_mlp_beside_the_experts_is_not_the_experts():
    beside = Place(7, mlp_beside=True)
    assert Patterns(["model.language_model.layers.*.mlp*", "mlp"]).cover(beside) is NONE
    assert Patterns(["model.language_model.layers.7.experts"]).cover(beside) is ALL
    assert Patterns(["*.moe.experts*"]).cover(beside) is ALL
