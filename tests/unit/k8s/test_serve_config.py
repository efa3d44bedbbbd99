"""The serve config of each overlay: Serve takes it, and the pods can hold what it asks for."""

from __future__ import annotations

import importlib
import math

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from deployments.app import build
from deployments.launch import check_config
from deployments.settings import AppSettings
from specdec.errors import ConfigError
from tests.conftest import REPOSITORY
from tests.kubernetes import (
    OVERLAYS,
    application,
    cluster,
    deployment,
    max_replicas,
    min_replicas,
    serve_config,
)

CONFIGS = REPOSITORY / "deployments" / "configs"
SAME_TUNING = {
    "cpu-demo": "cpu-demo.yaml",
    "h100-8b": "gpu-8b.yaml",
    "h100-70b-tp4": "gpu-70b-tp4.yaml",
}
ROLES = {"Target": "target", "Draft": "draft"}


def settings(overlay: str) -> AppSettings:
    return AppSettings.model_validate(application(overlay)["args"])


def nodes(overlay: str) -> dict[str, dict]:
    """What Ray's own autoscaler reads from the groups: resources and labels of a node of each."""
    resource = {"metadata": {"name": "specdec", "namespace": "specdec"}, "spec": cluster(overlay)}
    return _derive_autoscaling_config_from_ray_cr(resource)["available_node_types"]


def bundles(overlay: str, name: str) -> list[dict[str, float]]:
    """The resources of one replica, one entry per rank, as the config asks Ray for them."""
    options = deployment(overlay, name)
    if "placement_group_bundles" in options:
        return options["placement_group_bundles"]
    actor = options["ray_actor_options"]
    return [{"CPU": actor["num_cpus"], "GPU": actor.get("num_gpus", 0)}]


def total(overlay: str, name: str, resource: str) -> float:
    return sum(bundle.get(resource, 0) for bundle in bundles(overlay, name))


def selector(overlay: str, name: str) -> dict[str, str]:
    options = deployment(overlay, name)
    if "placement_group_bundle_label_selector" in options:
        (one,) = options["placement_group_bundle_label_selector"]
        return one
    return options["ray_actor_options"]["label_selector"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_takes_it_and_every_key_is_known(overlay):
    check_config(serve_config(overlay))


def test_a_misspelt_key_is_refused():
    config = serve_config("cpu-demo")
    config["applications"][0]["deployments"][1]["ray_actor_options"]["num_gpuz"] = 1
    with pytest.raises(ConfigError, match="num_gpuz"):
        check_config(config)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_it_names_can_be_imported(overlay):
    config = serve_config(overlay)
    paths = [application(overlay)["import_path"]]
    paths += config["grpc_options"]["grpc_servicer_functions"]
    policy = application(overlay).get("autoscaling_policy")
    paths += [policy["policy_function"]] if policy else []
    for path in paths:
        module, name = path.replace(":", ".").rsplit(".", 1)
        assert callable(getattr(importlib.import_module(module), name)), path


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_target_and_draft_scale_by_our_rule_or_not_at_all(overlay):
    options = {name: deployment(overlay, name) for name in ROLES}
    scaling = {name for name, each in options.items() if "autoscaling_config" in each}
    assert scaling in (set(), set(ROLES))
    assert bool(scaling) == ("autoscaling_policy" in application(overlay))
    assert all("policy" not in each.get("autoscaling_config", {}) for each in options.values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_options_of_the_deployments_repeat_those_of_the_arguments(overlay):
    """Options in a config replace those of the code; ranks are started with those of the code."""
    args = settings(overlay)
    for name, resources, model in (
        ("Target", args.target_resources, args.target.target),
        ("Draft", args.draft_resources, args.draft.draft),
    ):
        expected = {"CPU": resources.num_cpus, "GPU": resources.num_gpus}
        assert bundles(overlay, name) == [expected] * model.tensor_parallel_size
        if model.tensor_parallel_size > 1:
            assert deployment(overlay, name)["placement_group_strategy"] == "STRICT_PACK"


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", ["Target", "Draft"])
def test_replicas_fit_the_pods_of_their_own_group_and_go_nowhere_else(overlay, name):
    wanted = selector(overlay, name).items()
    fitting = [group for group, node in nodes(overlay).items() if wanted <= node["labels"].items()]
    assert fitting == [ROLES[name]]
    node = nodes(overlay)[ROLES[name]]
    per_pod = math.inf
    for resource in ("CPU", "GPU"):
        needed = total(overlay, name, resource)
        has = node["resources"].get(resource, 0)
        assert needed <= has, resource
        per_pod = min(per_pod, has // needed if needed else math.inf)
    # The autoscaler may have to make a pod for each; and it must be allowed to.
    options = deployment(overlay, name)
    assert max_replicas(options) <= per_pod * node["max_workers"]
    assert min_replicas(options) <= per_pod * node["min_workers"]
    if "GPU" in node["resources"]:
        assert total(overlay, name, "GPU") == node["resources"]["GPU"]  # no GPU idles


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gateways_fit_beside_the_models_of_the_smallest_fleet(overlay):
    free = 0.0
    for name, role in ROLES.items():
        node = nodes(overlay)[role]
        free += node["min_workers"] * node["resources"]["CPU"]
        free -= min_replicas(deployment(overlay, name)) * total(overlay, name, "CPU")
    gateway = build(settings(overlay))._bound_deployment
    wanted = deployment(overlay, "Gateway")["num_replicas"] * gateway.ray_actor_options["num_cpus"]
    assert 0 < wanted <= free


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_scheduled_on_the_head(overlay):
    resources = nodes(overlay)["headgroup"]["resources"]
    assert resources["CPU"] == 0
    assert resources.get("GPU", 0) == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_two_drafts_want_the_same_port_of_one_pod(overlay):
    assert settings(overlay).draft_server.port > 0
    node = nodes(overlay)["draft"]["resources"]
    two_fit = 2 * total(overlay, "Draft", "CPU") <= node["CPU"]
    if total(overlay, "Draft", "GPU"):
        two_fit = 2 * total(overlay, "Draft", "GPU") <= node["GPU"]
    assert not two_fit or max_replicas(deployment(overlay, "Draft")) == 1


@pytest.mark.parametrize("overlay", SAME_TUNING)
def test_the_models_are_tuned_as_in_the_config_without_kubernetes(overlay):
    text = (CONFIGS / SAME_TUNING[overlay]).read_text("utf-8")
    (ours,) = yaml.safe_load(text)["applications"]
    theirs = application(overlay)["args"]
    for role in ("target", "draft"):
        assert without_model(theirs[role], role) == without_model(ours["args"][role], role)
        assert theirs[f"{role}_resources"] == ours["args"][f"{role}_resources"]
    name = theirs.get("gateway", {}).get("model_name")
    assert (name or theirs["target"]["target"]["model"]) == ours["args"]["target"]["target"][
        "model"
    ]


def without_model(engine: dict, role: str) -> dict:
    """An engine's arguments but for where its weights lie, which is what differs."""
    model = {key: value for key, value in engine[role].items() if key != "model"}
    return {**engine, role: model}
