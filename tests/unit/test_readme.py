"""README tells the truth about commands, options, fields, files and links, as far as text can say.

That its requests are answered as printed is shown in tests/serve/test_readme.py.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import BaseModel

from deployments import openai_requests, settings
from deployments.api_keys import load_api_keys
from specdec import config, errors
from specdec.cli.app import app
from specdec.client.requests import GenerateOptions
from specdec.params import SpeculationParams
from tests.readme import REPOSITORY, blocks, text

CONFIGS = (
    settings.AppSettings,
    config.EngineConfig,
    config.DraftConfig,
    config.DraftLimits,
    config.ModelConfig,
    config.CacheConfig,
    config.SchedulerConfig,
    config.SpeculationConfig,
    settings.GatewaySettings,
    settings.RankResources,
    settings.DraftServerSettings,
    settings.TracingSettings,
)


def section(heading: str) -> str:
    """From a heading to the next one of the same depth."""
    match = re.search(rf"^(#+) {re.escape(heading)}[^\n]*\n", text(), re.MULTILINE)
    assert match is not None, heading
    rest = text()[match.end() :]
    return re.split(rf"^#{{1,{len(match[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(body: str) -> dict[str, str]:
    """First column, without back quotes, to second column, of the table in a section."""
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", body, re.MULTILINE)
    assert found
    return dict(found)


@pytest.mark.parametrize("model", CONFIGS, ids=lambda model: model.__name__)
def test_the_reference_has_every_key_and_its_default(model):
    expected = {name: written(field) for name, field in model.model_fields.items()}
    assert rows(section(f"{model.__name__}:")) == expected


def written(field) -> str:
    """A default as the reference writes it."""
    if field.is_required():
        return "required"
    match field.get_default(call_default_factory=True):
        case None:
            return "none"
        case BaseModel():
            return "defaults"
        case bool() as value:
            return str(value).lower()
        case tuple() as value:
            return f"[{', '.join(value)}]"
        case float() as value:
            return f"{value:g}"
        case value:
            return str(value)


def test_no_config_model_is_left_out():
    named = {model.__name__ for model in CONFIGS}
    for module in (config, settings):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel:
                assert name.startswith("_") or name in named, name


@pytest.mark.parametrize("body", [openai_requests.CompletionBody, openai_requests.ChatBody])
def test_every_request_field_is_named(body):
    named = set(re.findall(r"`(\w+)`", section("HTTP API")))
    assert set(body.model_fields) <= named


def test_every_client_keyword_is_named():
    named = set(re.findall(r"`(\w+)`", section("HTTP API") + section("gRPC API")))
    assert set(GenerateOptions.__annotations__) <= named


def test_every_speculation_key_is_named():
    named = re.findall(r"`(\w+)`", section("The speculation object"))
    assert set(SpeculationParams.__slots__) <= set(named)


def test_every_error_is_in_the_table():
    table = section("Errors")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and name != "ConfigError":
            assert f"`{name}`" in table


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/models"])
def test_the_openai_endpoints_have_a_curl_and_a_python_example(path):
    body = next(part for part in section("HTTP API").split("\n### ") if path in part[:40])
    assert "```bash" in body
    assert "```python" in body


@pytest.mark.parametrize("code", [b.code for b in blocks("python")])
def test_python_examples_compile(code):
    compile(code, "README.md", "exec")


def test_json_and_yaml_examples_parse(tmp_path):
    for block in blocks("json"):
        SpeculationParams.from_mapping(json.loads(block.code)["speculation"])
    whole, keys, gateway = (yaml.safe_load(block.code) for block in blocks("yaml"))
    settings.AppSettings.model_validate(whole["applications"][0]["args"])
    place = settings.GatewaySettings.model_validate(gateway["gateway"]).api_keys_file
    assert place is not None
    tmp_path.joinpath("keys.json").write_text(json.dumps(keys))
    named = settings.GatewaySettings(api_keys_file=str(tmp_path / "keys.json"))
    assert load_api_keys(named).operator("Bearer key-of-operations").tenant == "operations"


def command_lines() -> list[str]:
    """Every specdec command of README: in shell blocks and after a prompt in transcripts."""
    lines = [line for block in blocks("bash", "cli") for line in block.code.splitlines()]
    for block in blocks("console"):
        lines += [line.removeprefix("$ ") for line in block.code.splitlines()]
    return [line for line in lines if line.startswith("specdec ")]


@pytest.mark.parametrize("line", command_lines())
def test_commands_are_understood(line):
    name, *arguments = shlex.split(line)
    command = typer.main.get_command(app)
    context = command.make_context(name, list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = command.make_context(name, list(arguments), parent=context)


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    lines = [line for block in blocks("bash", "make") for line in block.code.splitlines()]
    used = {line.split()[1] for line in lines}
    assert {"serve", "test"} <= used <= set(targets)


def test_files_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", text()):
        assert (REPOSITORY / target).exists(), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text()):
        headings = re.findall(r"^#+ (.+)$", text(), re.MULTILINE)
        assert anchor in {h.lower().replace(" ", "-") for h in headings}


def test_the_folder_tree_is_the_real_one():
    tree = next(b.code for b in blocks("text") if b.code.startswith("specdec/"))
    folders: list[Path] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"\s*((?:[\w.]+(?:/|\.py) ?)+)", line)[1].split()
        for name in names:
            path = Path(*folders[:depth]) / name
            assert (REPOSITORY / path).exists(), path
        folders[depth:] = [Path(names[-1])]
    shown = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    packages = {p.parent.name for p in (REPOSITORY / "specdec").glob("*/__init__.py")}
    assert shown == packages
