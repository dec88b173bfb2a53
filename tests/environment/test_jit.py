"""can_jit: a C compiler on the path, and a cache that can be written."""

import os

import pytest

from moe_core.environment.jit import can_jit


@pytest.fixture
def environ(bare, command):
    command("gcc")
    return {"PATH": str(bare / "bin"), "TRITON_CACHE_DIR": str(bare / "deep" / "cache")}


def test_a_compiler_and_a_directory_that_can_be_made(environ):
    assert can_jit(environ) is True
    assert not os.path.exists(environ["TRITON_CACHE_DIR"]), "the probe looks, and makes nothing"


def test_no_compiler(environ, bare):
    (bare / "bin" / "gcc").unlink()
    assert can_jit(environ) is False


def test_cc_is_the_compiler_when_it_is_set(environ, command):
    assert can_jit({**environ, "CC": "no-such-compiler"}) is False
    command("ccache")
    assert can_jit({**environ, "CC": "ccache no-such-compiler"}) is True


def test_a_file_in_the_way_of_the_cache(environ, bare):
    (bare / "deep").write_text("")
    assert can_jit(environ) is False


def test_a_cache_that_cannot_be_written(environ, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert can_jit(environ) is False


def test_the_cache_is_under_triton_home(environ, bare):
    del environ["TRITON_CACHE_DIR"]
    (bare / "home").write_text("")
    assert can_jit({**environ, "TRITON_HOME": str(bare / "home")}) is False
    assert can_jit({**environ, "TRITON_HOME": str(bare)}) is True
