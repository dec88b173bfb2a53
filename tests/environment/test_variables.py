"""Environment variables: selection flags are frozen, misspelt variables of ours are named."""

import pytest

from moe_core.environment.variables import VARIABLES, flags_set, unknown_variables


def test_only_set_flags_are_frozen_as_they_were_set():
    environ = {"TRTLLM_FORCE_COMM_METHOD": " deepep ", "HOME": "/root", "THEIR_SWITCH": ""}
    assert [(f.name, f.value) for f in flags_set(environ)] == [("TRTLLM_FORCE_COMM_METHOD", " deepep ")]
    assert [f.name for f in flags_set(environ, ["THEIR_SWITCH", "UNSET"])] == [
        "THEIR_SWITCH",
        "TRTLLM_FORCE_COMM_METHOD",
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MOE_CORE_BACKND", "MOE_CORE_BACKEND"),
        ("MOE_CORE_BACKENDS", "MOE_CORE_BACKEND"),
        ("MOE_CORE_BANS", "MOE_CORE_BAN"),
        ("MOE_CORE_COMMUNICATON", "MOE_CORE_COMMUNICATION"),
        ("moe_core_ban", "MOE_CORE_BAN"),
        ("MOE_COREBACKEND", "MOE_CORE_BACKEND"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(name, meant):
    (sentence,) = unknown_variables({name: "x", **dict.fromkeys(VARIABLES, "x"), "PATH": "/bin"})
    assert name in sentence
    assert f"did you mean {meant}?" in sentence


def test_an_unlike_name_is_answered_with_all_of_them():
    (sentence,) = unknown_variables({"MOE_CORE_SOMETHING_ELSE": "1"})
    assert all(name in sentence for name in VARIABLES)
