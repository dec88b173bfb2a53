"""What is refused, and what the refusal says."""

import pickle

import pytest

from moe_core.ingest import IngestError, ingest

GOOD = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "hidden_size": 64,
    "n_group": 4,
    "topk_group": 2,
}


def error_of(**changes):
    with pytest.raises(IngestError) as caught:
        ingest(GOOD | changes)
    return caught.value


def test_the_config_that_the_others_change_is_good():
    assert ingest(GOOD).moe_layers == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n_routed_experts": None}, "model_type deepseek_v3 states no number of experts; needed one of num_experts"),
        ({"n_routed_experts": 0}, "n_routed_experts = 0"),
        ({"n_routed_experts": 1}, "n_routed_experts = 1"),
        ({"n_routed_experts": "many"}, 'n_routed_experts = "many"; needed an integer'),
        ({"n_routed_experts": 16.5}, "n_routed_experts = 16.5; needed an integer"),
        ({"n_routed_experts": -16}, "n_routed_experts = -16"),
        ({"num_experts_per_tok": None}, "no top_k; needed one of num_experts_per_tok, num_experts_per_token"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok = true"),
        ({"num_experts_per_tok": 32}, "top_k is 32, more than num_experts 16"),
        ({"num_experts_per_tok": 9}, "top_k is 9, but 2 groups hold only 8 experts"),
        ({"moe_intermediate_size": None}, "no intermediate_size; needed one of moe_intermediate_size"),
        ({"hidden_size": None}, "no hidden_size; needed one of hidden_size, d_model"),
        ({"num_hidden_layers": 0}, "no number of layers"),
        ({"n_group": 3}, "num_experts 16 is not a multiple of num_expert_groups 3"),
        ({"topk_group": None}, "4 groups of experts; needed how many are kept"),
        ({"topk_group": 5}, "topk_group is 5, more than num_expert_groups 4"),
        ({"num_experts": 8}, "contradictory keys: num_experts = 8, n_routed_experts = 16"),
        ({"moe_topk": 2}, "contradictory keys: num_experts_per_tok = 4, moe_topk = 2"),
        ({"norm_topk_prob": "yes"}, 'norm_topk_prob = "yes"; needed true or false'),
        ({"routed_scaling_factor": "big"}, 'routed_scaling_factor = "big"; needed a number'),
        ({"scoring_func": ["sigmoid"]}, "scoring_func"),
        ({"moe_intermediate_size": [32, 32]}, "2 values of moe_intermediate_size or its like; needed one value"),
        ({"swiglu_limit": -1.0}, "activation constant clamp must be > 0, got -1.0"),
        ({"swiglu_limits": [7.0]}, r"swiglu_limits = [7.0]; needed a number or null for each of 4 layers"),
        ({"is_encoder_decoder": True}, "an encoder-decoder model"),
        ({"model_type": "doge"}, "single neurons"),
    ],
)
def test_refused(changes, text):
    assert text in str(error_of(**changes))


def test_all_that_is_wrong_is_said_at_once():
    error = error_of(num_experts_per_tok=None, hidden_size="wide", norm_topk_prob="yes", num_experts=8)
    assert len(error.troubles) >= 4
    for text in ("no top_k", 'hidden_size = "wide"', "norm_topk_prob", "contradictory keys"):
        assert text in str(error)


def test_an_error_says_asked_found_needed_try():
    error = error_of(num_experts=8)
    assert error.asked == "deepseek_v3"
    assert str(error).splitlines()[0] == "asked for the MoE layers of deepseek_v3:"
    assert error.troubles[0].needed == "one value"
    assert str(error).endswith("try: remove the wrong key")


def test_an_error_survives_pickling():
    error = error_of(num_experts=8)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
