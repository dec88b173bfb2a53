"""Which layers have experts, by each way that configs say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_core.ingest import IngestError, ingest


def layers_of(**keys):
    """MoE layers of an eight-layer model (unless it says otherwise), then its MoE draft layers."""
    base = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hidden_size": 64}
    model = ingest({"num_hidden_layers": 8} | base | keys)
    return model.moe_layers, model.draft_layers


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, range(8)),
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5}, range(3, 8)),
        ({"mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 5}, range(8)),
        ({"hybrid_override_pattern": "MEM*E-ME"}, (1, 4, 7)),
        ({"hybrid_override_pattern": "ME|M*|E-ME"}, (1, 4, 7)),
        ({"hybrid_override_pattern": "M*E", "num_hidden_layers": None}, (2,)),
        ({"layers_block_type": ["mamba", "moe", "attention", "mlp"] * 2}, (1, 5)),
        ({"layer_types": ["linear_attention", "moe"] * 4}, (1, 3, 5, 7)),
        ({"layer_types": ["sliding_attention", "sparse_attention"] * 4}, range(8)),
        ({"moe_layers": [0, 3]}, (0, 3)),
        ({"moe_layers_enum": "5,6, 7"}, (5, 6, 7)),
        ({"moe_layer_freq": [0, 0, 1, 1, 0, 1, 1, 1]}, (2, 3, 5, 6, 7)),
        ({"moe_layer_freq": "[0]*3+[1]*5"}, range(3, 8)),
        ({"moe_layer_freq": "([0, 1] * 4)"}, (1, 3, 5, 7)),
        ({"moe_layer_freq": "[0,1,1,1,1,1,1,0]"}, range(1, 7)),
        ({"moe_layer_freq": 2}, (0, 2, 4, 6)),
        ({"moe_layer_freq": 1, "first_k_dense_replace": 3}, range(3, 8)),
        ({"moe_layer_freq": 2, "first_k_dense_replace": 3}, (4, 6)),
        ({"num_dense_layers": 2}, range(2, 8)),
        ({"moe_layer_num_skipped": 1}, range(1, 8)),
        ({"decoder_sparse_step": 2}, (1, 3, 5, 7)),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 7]}, range(1, 7)),
        ({"mlp_only_layers": [2]}, (0, 1, 3, 4, 5, 6, 7)),
        ({"interleave_moe_layer_step": 4}, (3, 7)),
        ({"moe_layer_frequency": 3}, (2, 5)),
        ({"expert_layer_period": 4, "expert_layer_offset": 1}, (1, 5)),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 5, "moe_layer_interval": 1}, (2, 3, 4, 5)),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": -1, "moe_layer_interval": 2}, (3, 5, 7)),
        ({"moe_layer_start_index": [1, 3], "moe_layer_end_index": [6, 7]}, range(1, 7)),
        ({"num_experts": [4, 1, 4, 4, 0, 4, 4, 4]}, (0, 2, 3, 5, 6, 7)),
        ({"enable_moe_block": True, "first_k_dense_replace": 6}, (6, 7)),
        ({"block_configs": [{"block_type": "moe"}, {"block_type": "mamba"}] * 4}, (0, 2, 4, 6)),
        ({"block_configs": [{"ffn": {"moe": {"num_experts": 2}}}, {"ffn": {"no_op": True}}] * 4}, (0, 2, 4, 6)),
        ({"per_layer_config": {"03": {"skip": ["mlp"]}, "5": {"skip": ["attention"]}}}, (0, 1, 2, 4, 5, 6, 7)),
    ],
)
def test_moe_layers(keys, layers):
    assert layers_of(**keys)[0] == tuple(layers)


@pytest.mark.parametrize(
    ("keys", "drafts"),
    [
        ({}, ()),
        ({"num_nextn_predict_layers": 0}, ()),
        ({"num_nextn_predict_layers": 1}, (8,)),
        ({"num_mtp_layers": 2}, (8, 9)),
        ({"mtp_num_hidden_layers": 1}, (8,)),
        ({"mtp_num_layers": 1}, (8,)),
        ({"mtp_config": {"num_nextn_predict_layers": 1}}, (8,)),
        ({"num_mtp_modules": 3, "mtp_transformer_layers": 2}, range(8, 14)),
        ({"num_mtp_modules": 3, "use_mtp": False}, ()),
        ({"num_nextn_predict_layers": 1, "first_k_dense_replace": 3}, (8,)),
        ({"num_nextn_predict_layers": 2, "decoder_sparse_step": 2}, (9,)),
        ({"num_nextn_predict_layers": 2, "mlp_layer_types": ["sparse"] * 8}, (8, 9)),
        ({"num_nextn_predict_layers": 2, "mlp_layer_types": ["sparse"] * 9 + ["dense"]}, (8,)),
        ({"num_nextn_predict_layers": 2, "mtp_mlp_layer_types": ["dense", "sparse"]}, (9,)),
        ({"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]}, (9,)),
        ({"num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*E"}, (9, 11)),
        ({"num_nextn_predict_layers": 1, "moe_layers": [6, 7]}, ()),
    ],
)
def test_draft_layers(keys, drafts):
    assert layers_of(**keys)[1] == tuple(drafts)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"mlp_layer_types": ["dense"] * 8}, "no MoE layer among 8"),
        ({"first_k_dense_replace": 8}, "first_k_dense_replace = 8"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ({"interleave_moe_layer_step": 9}, "no MoE layer among 8"),
        ({"enable_moe_block": False}, "enable_moe_block = false"),
        ({"num_experts": [1] * 8}, "no MoE layer among 8"),
        ({"moe_layers": [], "num_nextn_predict_layers": 1}, "no MoE layer among 8"),
    ],
)
def test_moe_keys_without_a_moe_layer_are_an_error(keys, found):
    with pytest.raises(IngestError, match=found):
        layers_of(**keys)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"mlp_layer_types": ["dense", "sparse"]}, "2 entries in a list with one per layer; needed 8"),
        ({"mlp_layer_types": ["sparse"] * 7 + ["mystery"]}, 'mlp_layer_types with "mystery"'),
        ({"hybrid_override_pattern": "MEMEMEMX"}, "hybrid_override_pattern with X"),
        ({"hybrid_override_pattern": "MEM"}, "3 entries"),
        ({"moe_layers": [3, 8]}, r"moe_layers = \[3, 8\]; needed layer indices from 0 to 7"),
        ({"moe_layers_enum": "first"}, "moe_layers_enum"),
        ({"moe_layer_freq": "every second"}, 'moe_layer_freq = "every second"'),
        ({"moe_layer_freq": [0, 2, 1, 1, 1, 1, 1, 1]}, "moe_layer_freq"),
        ({"moe_layer_start_index": "one"}, "moe_layer_start_index"),
        ({"num_hidden_layers": None}, "no number of layers"),
        ({"first_k_dense_replace": 2, "num_dense_layers": 3}, "contradictory keys"),
    ],
)
def test_layers_that_make_no_sense(keys, found):
    with pytest.raises(IngestError, match=found):
        layers_of(**keys)


def test_the_more_explicit_of_two_statements_wins_and_is_noted():
    base = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hidden_size": 64}
    keys = {"num_hidden_layers": 4, "mlp_layer_types": ["dense"] + ["sparse"] * 3, "first_k_dense_replace": 2}
    model = ingest(base | keys)
    assert model.moe_layers == (1, 2, 3)
    assert "mlp_layer_types decides which layers have experts; first_k_dense_replace says otherwise" in model.notes


@given(
    layers=st.integers(1, 12),
    keys=st.fixed_dictionaries(
        {},
        optional={
            "first_k_dense_replace": st.integers(0, 12),
            "moe_layer_freq": st.integers(1, 4),
            "decoder_sparse_step": st.integers(0, 4),
            "mlp_only_layers": st.lists(st.integers(0, 12)),
            "num_nextn_predict_layers": st.integers(0, 3),
        },
    ),
)
def test_layers_are_moe_or_dense_and_drafts_come_after(layers, keys):
    base = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hidden_size": 64}
    try:
        model = ingest(base | {"num_hidden_layers": layers} | keys)
    except IngestError as error:
        assert "no MoE layer" in str(error)  # noqa: PT017
        return
    assert sorted(model.moe_layers + model.dense_layers) == list(range(layers))
    assert set(model.draft_layers) <= set(range(layers, layers + keys.get("num_nextn_predict_layers", 0)))
    assert [g.layers for g in model.groups] == [tuple(sorted(g.layers)) for g in model.groups]
