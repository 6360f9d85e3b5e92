"""`--engine ray` where it cannot work is an error of one line, said before anything is read."""

import sys

import pytest


@pytest.mark.parametrize("command", [("analyze", "."), ("collect", "-o", "kept")])
def test_without_ray_it_says_how_to_get_it(call, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = call(*command, "--engine", "ray")
    assert done.exit_code == 2
    assert "--engine ray needs Ray, which cannot be imported" in done.stderr
    assert "pip install '.[ray]' (in a checkout of tracekit)" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("command", [("analyze",), ("collect", "-o", "kept")])
@pytest.mark.parametrize("option", ["--on-every-node", "--ray-address"])
def test_its_options_are_refused_without_it(call, tmp_path, command, option):
    done = call(*command, tmp_path, option, "x")
    assert done.exit_code == 2
    assert "add --engine ray" in done.stderr


@pytest.mark.parametrize(("command", "name"), [(("analyze",), "PATH"), (("collect", "-o", "x"), "ROOT")])
def test_a_path_is_still_needed_where_nodes_are_not_asked(call, command, name):
    done = call(*command)
    assert done.exit_code == 2
    assert f"Missing argument '{name}...'" in done.stderr
