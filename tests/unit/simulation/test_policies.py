"""What a policy's name builds: above all, the class that the engine runs."""

from __future__ import annotations

import inspect

import pytest

from specdec.engine import builder
from specdec.errors import ConfigError
from specdec.simulation.oracle import Oracle
from specdec.simulation.policies import policy_setting
from specdec.speculation.controller import GoodputController


def test_adaptive_is_the_class_that_the_engine_builds():
    simulated = policy_setting("adaptive", ("eagle",), 8).controller()
    assert type(simulated) is builder.GoodputController is GoodputController
    assert "GoodputController(" in inspect.getsource(builder)


def test_the_engine_built_from_a_configuration_runs_that_class(tiny_llama):
    from tests.unit.engine.engine_harness import make_engine

    engine = make_engine(tiny_llama)
    assert type(engine.controller) is type(policy_setting("adaptive", ("ngram",), 8).controller())


def test_names_build_their_policy_and_its_drafters():
    both = ("eagle", "ngram")
    assert isinstance(policy_setting("oracle", both, 4).controller(), Oracle)
    assert policy_setting("fixed:3", both, 4).drafters == both
    named = policy_setting("fixed:ngram:3", both, 4)
    assert named.drafters == ("ngram", "eagle")
    assert named.controller().snapshot()["policy"] == "fixed:3"
    assert policy_setting("fixed:0", both, 0).controller().snapshot()["policy"] == "off"


@pytest.mark.parametrize(
    ("name", "max_k", "field"),
    [
        ("nothing", 4, "policy"),
        ("fixed:5", 4, "policy"),
        ("fixed:ngram:5", 4, "policy"),
        ("fixed:draft:1", 4, "policy"),
        ("fixed:-1", 4, "policy"),
        ("fixed:K", 4, "policy"),
        ("fixed:DRAFTER:K", 4, "policy"),
        ("adaptive", 129, "max_k"),
        ("adaptive", -1, "max_k"),
    ],
)
def test_what_is_not_allowed_is_named(name, max_k, field):
    with pytest.raises(ConfigError) as caught:
        policy_setting(name, ("eagle", "ngram"), max_k)
    assert caught.value.field == field
