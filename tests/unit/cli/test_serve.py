"""`specdec serve` before Ray is started: what it refuses, and what it takes from a config."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from specdec.cli.app import app
from specdec.cli.serve import longest_request_s


@pytest.mark.parametrize("option", [["--ingress", "haproxy"], ["--ray-host", "10.0.0.5"]])
def test_a_running_cluster_has_an_environment_of_its_own(option):
    result = CliRunner().invoke(app, ["serve", "--ray-address", "10.0.0.1:6379", *option])
    assert result.exit_code == 2
    assert "started with its own" in " ".join(result.output.split())


def test_the_longest_request_is_that_of_the_config():
    assert longest_request_s({}) == 600.0
    gateways = [None, {}, {"request_timeout_s": 30}, {"request_timeout_s": 7200}]
    applications = [{"args": {"gateway": gateway}} for gateway in gateways]
    assert longest_request_s({"applications": [*applications, {}]}) == 7200.0


@pytest.mark.parametrize("applications", [7, "x", [7, None, {"args": 7}, {"args": {"gateway": 7}}]])
def test_a_config_of_another_shape_is_left_to_the_launcher(applications):
    assert longest_request_s({"applications": applications}) == 600.0
