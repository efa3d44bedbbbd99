"""The configs we ship fit Serve's schema and our own, and a misspelt key never passes."""

from __future__ import annotations

import copy
from importlib.resources import files

import pytest
import yaml
from ray._common.utils import import_attr

from deployments.launch import check_config
from deployments.settings import AppSettings
from specdec.errors import ConfigError

CONFIGS = sorted(
    item.name for item in files("deployments.configs").iterdir() if item.name.endswith(".yaml")
)


def load(name):
    return yaml.safe_load((files("deployments.configs") / name).read_text())


def test_all_configs_are_here():
    assert CONFIGS == ["cpu-demo.yaml", "gpu-70b-tp4.yaml", "gpu-8b.yaml"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_config_is_valid(name):
    schema = check_config(load(name))
    (application,) = schema.applications
    settings = AppSettings.model_validate(application.args)
    assert settings.draft is not None
    assert {d.name for d in application.deployments} == {"Gateway", "Target", "Draft"}
    assert schema.grpc_options.grpc_servicer_functions


def test_the_large_config_asks_for_four_gpus_and_a_fifth():
    settings = AppSettings.model_validate(
        check_config(load("gpu-70b-tp4.yaml")).applications[0].args
    )
    assert settings.target.target.tensor_parallel_size == 4
    assert settings.target_resources.num_gpus == 1
    assert settings.draft.draft.tensor_parallel_size == 1
    assert settings.draft_resources.num_gpus == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_every_function_that_a_config_names_exists(name):
    schema = check_config(load(name))
    paths = [application.import_path for application in schema.applications]
    paths += schema.grpc_options.grpc_servicer_functions
    policy = schema.applications[0].autoscaling_policy
    if policy is not None:
        paths.append(policy["policy_function"])
    for path in paths:
        assert callable(import_attr(path))


@pytest.mark.parametrize("name", CONFIGS)
def test_what_scales_is_scaled_by_our_rule(name):
    """Serve's own rule counts calls, and drafts get none."""
    (application,) = load(name)["applications"]
    scaling = {d["name"] for d in application["deployments"] if "autoscaling_config" in d}
    # The rule for drafts reads what targets report, and those report only where they scale, too.
    assert scaling in (set(), {"Target", "Draft"})
    assert bool(scaling) == ("autoscaling_policy" in application)
    assert all("policy" not in d.get("autoscaling_config", {}) for d in application["deployments"])


TYPOS = [
    ("proxy_locations",),
    ("http_options", "prot"),
    ("grpc_options", "servicer_functions"),
    ("logging_config", "enable_acces_log"),
    ("applications", 0, "route_prefixx"),
    ("applications", 0, "deployments", 2, "num_replica"),
    ("applications", 0, "deployments", 2, "ray_actor_options", "num_gpuz"),
    ("applications", 0, "deployments", 2, "autoscaling_config", "min_replica"),
    ("applications", 0, "deployments", 2, "autoscaling_config", "policy", "policy_functions"),
    ("applications", 0, "autoscaling_policy", "policy_functions"),
    ("applications", 0, "args", "targets"),
    ("applications", 0, "args", "target", "cach"),
    ("applications", 0, "args", "target", "target", "dtypes"),
    ("applications", 0, "args", "target", "speculation", "max_k"),
    ("applications", 0, "args", "draft", "max_share"),
    ("applications", 0, "args", "gateway", "api_key"),
]


@pytest.mark.parametrize("path", TYPOS, ids=lambda path: ".".join(map(str, path)))
def test_a_misspelt_key_is_refused_by_name(path):
    config = copy.deepcopy(load("gpu-8b.yaml"))
    place = config
    for step in path[:-1]:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[path[-1]] = 1
    with pytest.raises(ConfigError) as refusal:
        check_config(config)
    assert path[-1] in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("applications", 0, "args", "target", "speculation", "max_num_speculative_tokens"), -1),
        (("applications", 0, "args", "target", "speculation", "drafters"), ["medusa"]),
        (("applications", 0, "args", "target", "speculation", "drafters"), ["ngram"]),
        (("applications", 0, "args", "draft"), None),
        (("applications", 0, "args", "target", "target", "quantization"), "int3"),
        (("applications", 0, "deployments", 0, "max_ongoing_requests"), 0),
        (("http_options", "port"), "eight thousand"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else repr(value),
)
def test_a_wrong_value_is_refused(path, value):
    config = copy.deepcopy(load("gpu-8b.yaml"))
    place = config
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ConfigError):
        check_config(config)
