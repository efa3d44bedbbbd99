"""`specdec serve`: the config that it writes is one that Serve and the application accept."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments import configs, launch, ray_environment
from deployments.settings import AppSettings
from specdec.cli import serve
from specdec.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_is_set_in_this_process(monkeypatch):
    """It lives on, and others start a Ray in it."""
    monkeypatch.setattr(ray_environment, "variables", lambda *arguments: {})


@pytest.fixture
def launched(monkeypatch):
    """What the launcher would have started."""
    calls = []
    monkeypatch.setattr(launch, "launch_here", lambda *arguments: calls.append(arguments))
    return calls


def printed(specdec, *arguments):
    config = yaml.safe_load(specdec("serve", *arguments, "--print-config").stdout)
    schema = ServeDeploySchema.model_validate(config)
    (application,) = schema.applications
    assert application.import_path == "deployments.app:build"
    return schema, AppSettings.model_validate(application.args)


def test_flags_become_a_config(specdec):
    schema, settings = printed(
        specdec, "--target", "big", "--tensor-parallel-size", 4, "--dtype", "bfloat16",
        "--draft", "small", "--draft-quantization", "int8", "--max-num-speculative-tokens", 6,
        "--model-name", "mine", "--max-model-len", 4096, "--http-port", 8080, "--grpc-port", 9090,
        "--device", "cpu", "--threads", 2, "--host", "0.0.0.0",
        "--skip-self-check",
    )  # fmt: skip
    target, draft = settings.target, settings.draft
    assert (target.target.model, target.target.tensor_parallel_size) == ("big", 4)
    assert (target.target.dtype, target.target.num_threads) == ("bfloat16", 2)
    assert not target.target.self_check
    assert not draft.draft.self_check
    assert target.speculation.max_num_speculative_tokens == 6
    assert target.speculation.drafters == ("draft", "ngram")
    assert target.scheduler.max_model_len == draft.scheduler.max_model_len == 4096
    assert (draft.draft.model, draft.draft.quantization) == ("small", "int8")
    assert settings.gateway.model_name == "mine"
    assert settings.target_resources.num_gpus == 0
    assert schema.http_options.host == "0.0.0.0"
    assert (schema.http_options.port, schema.grpc_options.port) == (8080, 9090)
    assert schema.grpc_options.grpc_servicer_functions == [serve.SERVICER]


def test_gpu_ranks_ask_for_a_gpu_each(specdec):
    _, settings = printed(specdec, "--target", "big", "--draft", "small", "--device", "cuda")
    assert settings.target_resources.num_gpus == settings.draft_resources.num_gpus == 1
    assert settings.target.target.device == "cuda"


def test_without_a_draft_only_ngrams_propose(specdec):
    _, settings = printed(specdec, "--target", "big")
    assert settings.draft is None
    assert settings.target.target.self_check
    assert settings.target.speculation.drafters == ("ngram",)


def test_without_arguments_the_demo_pair_is_served(specdec, launched):
    specdec("serve")
    ((config, ray_host, behind_haproxy, ready_timeout_s, _),) = launched
    settings = AppSettings.model_validate(config["applications"][0]["args"])
    assert settings.target.target.model == settings.draft.draft.model == "smollm2"
    assert ray_host == "127.0.0.1"
    assert behind_haproxy == (ray_environment.haproxy_binary() is not None)
    assert ready_timeout_s == 600


def test_flags_win_over_the_file_and_the_file_over_defaults(specdec, launched, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "http_options": {"port": 8111, "host": "0.0.0.0"},
                "grpc_options": {"port": 9111},
                "applications": [{"import_path": "deployments.app:build", "args": {}}],
            }
        )
    )
    specdec("serve", "--config", path, "--grpc-port", 9222)
    config = launched[0][0]
    assert config["http_options"] == {"port": 8111, "host": "0.0.0.0"}
    assert config["grpc_options"]["port"] == 9222


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("applications: [", ", line 1, column 16: expected"),
        ("applications:\n  - a: b: c\n", ", line 2, column 9: mapping values are not allowed"),
        ("a: 1\nb: 2\na: 3\n", ", line 3, column 1: a stands there twice"),
        ("a: 2026-99-99", ", line 1, column 4: month must be in 1..12"),
        ("a: !!python/object:os.system {}", ", line 1, column 4: could not determine"),
        ("a: &x [*x]", "values"),
        ("a: \x01", ", line 1: holds a character"),
        (b"a: 1\nb: \xff\n", "line 2 is no UTF-8 text"),
        ("[" * 5000, "nested too deeply"),
        ("- 1\n", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("\nhttp_options: 3\n", ", line 2: config: http_options: must be a mapping"),
        ("grpc_options: [a]\n", ", line 1: config: grpc_options: must be a mapping"),
    ],
)
def test_unreadable_config_file_is_exit_status_2(specdec, launched, tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    told = specdec("serve", "--config", path, code=2).stderr
    assert message in told
    assert str(path) in told
    assert told.count("\n") == 1
    assert launched == []


@pytest.mark.parametrize("path", ["/nowhere/config.yaml", "/dev/zero", "/"])
def test_a_config_file_that_is_none_is_named(specdec, launched, path):
    told = specdec("serve", "--config", path, code=2).stderr
    assert f"cannot read {path}" in told
    assert told.count("\n") == 1


CONFIG = """\
http_options: {port: 8000}
applications:
  - name: a
    import_path: deployments.app:build
    args:
      target:
        target:
          model: smollm2
          dtype: float32
        speculation: {drafters: []}
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "field"),
    [
        ("float32", "float9", 9, "applications.0.args.target.target.dtype"),
        ("float32", "float32\n          dtypes: x", 10, "applications.0.args.target.target.dtypes"),
        ("{port: 8000}", "{port: x}", 1, "http_options.port"),
        ("{port: 8000}", "{prot: 1}", 1, "http_options.prot"),
        ("applications:\n", "applications: [3]\nx:\n", 2, "applications.0"),
        ("args:", "args: 3\n    argz:", 5, "applications.0.args"),
        ("drafters: []", "drafters: [x]", 10, "applications.0.args.target.speculation.drafters.0"),
        ("{drafters: []}", "3", 10, "applications.0.args.target.speculation"),
    ],
)
def test_a_config_error_names_file_line_and_field(specdec, tmp_path, before, after, line, field):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace(before, after))
    told = specdec("serve", "--config", path, code=2).stderr
    assert f"{path}, line {line}: config: {field}: " in told
    assert "Traceback" not in told
    assert told.count("\n") == 1


def test_a_key_in_the_config_is_refused_without_repeating_it(specdec, tmp_path):
    path = tmp_path / "config.yaml"
    keys = "      gateway: {api_keys: {sk-secret: search}}\n"
    path.write_text(CONFIG + keys)
    told = specdec("serve", "--config", path, code=2).stderr
    assert f"{path}, line 11: config: applications.0.args.gateway: api_keys" in told
    assert "sk-secret" not in told


def test_a_file_of_keys_that_cannot_be_read_ends_the_start(specdec, tmp_path):
    path = tmp_path / "config.yaml"
    keys = "      gateway: {api_keys_file: /nowhere/keys.yaml}\n"
    path.write_text(CONFIG + keys)
    told = specdec("serve", "--config", path, code=2).stderr
    assert "gateway.api_keys_file: cannot read /nowhere/keys.yaml" in told
    assert told.count("\n") == 1


CONFIGS = sorted(Path(configs.__path__[0]).glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_that_comes_with_the_package_is_accepted(path):
    schema = launch.check_config(serve.read_config(path))
    assert [application.import_path for application in schema.applications] == [serve.IMPORT_PATH]


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ([], "replicas"),
        (["http_options"], "prot"),
        (["grpc_options"], "servicer_functions"),
        (["applications", 0], "import"),
        (["applications", 0, "deployments", 0], "num_replica"),
        (["applications", 0, "args"], "targets"),
        (["applications", 0, "args", "target", "target"], "quantisation"),
        (["applications", 0, "args", "draft", "cache"], "blocks"),
    ],
)
def test_unknown_key_is_refused_by_name(where, key):
    settings = serve.read_config(None)
    serve.apply_network(settings, None, None, None)
    settings["applications"][0].setdefault("deployments", [{"name": "Target"}])
    place = settings
    for part in where:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    place[key] = 1
    with pytest.raises(ConfigError, match=key):
        launch.check_config(settings)


def test_wrong_value_is_refused_by_name():
    settings = serve.read_config(None)
    settings["grpc_options"]["port"] = "grpc"
    with pytest.raises(ConfigError, match=r"grpc_options\.port"):
        launch.check_config(settings)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "x.yaml", "--target", "m"],
        ["--config", "/no/such.yaml"],
        ["--draft", "m"],
        ["--max-model-len", "64"],
        ["--dtype", "auto"],
    ],
)
def test_contradicting_flags_and_missing_files_are_exit_status_2(specdec, arguments):
    specdec("serve", *arguments, code=2)
