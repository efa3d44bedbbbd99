"""`specdec serve`: start Ray Serve with a target and a draft on this machine, or on its cluster.

It writes a Serve config or reads one, and hands it to `deployments.launch` by import path: the
command line itself knows nothing of Ray.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from specdec.cli.console import messages
from specdec.cli.options import (
    API_KEY_VARIABLE,
    ENGINE,
    Device,
    Draft,
    DraftQuantization,
    Dtype,
    DtypeOption,
    MaxK,
    Quantization,
    SelfCheck,
    TargetQuantization,
    Threads,
)
from specdec.client import Client
from specdec.errors import ConfigError, SpecdecError
from specdec.yaml_files import line_of, parse_yaml, read_yaml

EXAMPLES = """Examples:

    specdec serve

    specdec serve --config deployments/configs/gpu-8b.yaml

    specdec serve --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --tensor-parallel-size 2

    specdec serve --target ./my-model --print-config > my-model.yaml

Without --config and --target it serves the demo pair; specdec models fetch smollm2 first."""

IMPORT_PATH = "deployments.app:build"
LAUNCHER = "deployments.launch"
ENVIRONMENT = "deployments.ray_environment"
DEMO_CONFIG = ("deployments.configs", "cpu-demo.yaml")
SERVICER = "specdec.v1.inference_pb2_grpc.add_InferenceServiceServicer_to_server"
NETWORK = "Network"
FIRST_PROMPT = "Once upon a time"
FIRST_ANSWER_TIMEOUT_S = 60.0
# Ray's CPUs are only a count for placement: half a one per CPU rank lets target, draft and gateway
# share a machine of two cores.
CPU_RANK_CPUS = 0.5
DEFAULT_REQUEST_TIMEOUT_S = 600.0


class Ingress(StrEnum):
    """What stands between clients and the gateway."""

    AUTO = "auto"
    HAPROXY = "haproxy"
    PYTHON = "python"


ConfigFile = Annotated[
    Path | None, typer.Option(help="A Serve config file; it names the models itself.")
]
ServedTarget = Annotated[
    str | None, typer.Option(help="Target: a name, folder or hub id.", rich_help_panel=ENGINE)
]
TargetRanks = Annotated[int, typer.Option(min=1, help="Its ranks.", rich_help_panel=ENGINE)]
DraftRanks = Annotated[int, typer.Option(min=1, help="Ranks of the draft.", rich_help_panel=ENGINE)]
ModelName = Annotated[
    str | None, typer.Option(help="Name that clients use.", rich_help_panel=ENGINE)
]
MaxModelLen = Annotated[
    int | None, typer.Option(min=2, help="Limit of prompt + output.", rich_help_panel=ENGINE)
]
DeviceOption = Annotated[
    Device, typer.Option("--device", help="Where models run.", rich_help_panel=ENGINE)
]
Host = Annotated[
    str | None, typer.Option(help="Address to listen on; 127.0.0.1.", rich_help_panel=NETWORK)
]
HttpPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="HTTP port; 8000.", rich_help_panel=NETWORK)
]
GrpcPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="gRPC port; 9000.", rich_help_panel=NETWORK)
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        envvar="RAY_ADDRESS",
        help="A running Ray cluster; without it, Ray starts here.",
        rich_help_panel=NETWORK,
    ),
]
RayHost = Annotated[
    str | None,
    typer.Option(
        help="Address of Ray's own ports, where Ray starts here; 127.0.0.1.",
        rich_help_panel=NETWORK,
    ),
]
IngressOption = Annotated[
    Ingress,
    typer.Option(
        "--ingress",
        help="Serve's HAProxy or its Python proxy, where Ray starts here.",
        rich_help_panel=NETWORK,
    ),
]
ReadyTimeout = Annotated[
    float, typer.Option("--ready-timeout", min=1, help="Give up starting after these seconds.")
]
PrintConfig = Annotated[bool, typer.Option(help="Print the Serve config and stop.")]
# Flags that only mean something beside --target.
MODEL_FLAGS = (
    "target_quantization",
    "tensor_parallel_size",
    "draft",
    "draft_quantization",
    "draft_tensor_parallel_size",
    "model_name",
    "max_model_len",
    "device",
    "dtype",
    "threads",
    "max_num_speculative_tokens",
    "self_check",
)


def serve(
    context: typer.Context,
    config: ConfigFile = None,
    target: ServedTarget = None,
    target_quantization: TargetQuantization = Quantization.NONE,
    tensor_parallel_size: TargetRanks = 1,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    draft_tensor_parallel_size: DraftRanks = 1,
    model_name: ModelName = None,
    max_model_len: MaxModelLen = None,
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    threads: Threads = None,
    max_num_speculative_tokens: MaxK = 8,
    self_check: SelfCheck = True,
    host: Host = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    ray_address: RayAddress = None,
    ray_host: RayHost = None,
    ingress: IngressOption = Ingress.AUTO,
    ready_timeout_s: ReadyTimeout = 600.0,
    print_config: PrintConfig = False,
) -> None:
    """Serve a target and a draft over HTTP and gRPC until interrupted."""
    if target is None:
        _refuse_unused_flags(context)
        settings = read_config(config)
    elif config is not None:
        raise typer.BadParameter("--config names the models already: leave --target out")
    else:
        numbers = _numbers(device, dtype, threads)
        if not self_check:
            numbers["self_check"] = False
        settings = serve_config(
            _model(target, target_quantization, tensor_parallel_size, numbers),
            draft=None
            if draft is None
            else _model(draft, draft_quantization, draft_tensor_parallel_size, numbers),
            max_num_speculative_tokens=max_num_speculative_tokens,
            max_model_len=max_model_len,
            model_name=model_name,
        )
    with _located(config):
        apply_network(settings, host, http_port, grpc_port)
        if print_config:
            typer.echo(yaml.safe_dump(settings, sort_keys=False), nl=False)
        elif ray_address is None:
            _launch_here(settings, ray_host or "127.0.0.1", ingress, ready_timeout_s)
        elif ray_host is not None or ingress is not Ingress.AUTO:
            raise typer.BadParameter(
                "--ray-host and --ingress are for a Ray that starts here; the cluster at "
                f"{ray_address} was started with its own (RAY_SERVE_ENABLE_HA_PROXY)"
            )
        else:
            launcher = _import(LAUNCHER)
            launcher.launch(settings, ray_address, ready_timeout_s, _announce(settings, []))


def _refuse_unused_flags(context: typer.Context) -> None:
    for name in MODEL_FLAGS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = name.replace("_", "-")
            raise typer.BadParameter(f"--{flag} needs --target; a config file says it itself")


def _numbers(device: Device, dtype: Dtype, threads: int | None) -> dict[str, Any]:
    on_gpu = device is Device.CUDA or (device is Device.AUTO and _has_gpu())
    numbers: dict[str, Any] = {"dtype": dtype.value, "device": "cuda" if on_gpu else "cpu"}
    return numbers if threads is None else {**numbers, "num_threads": threads}


def _model(
    model: str, quantization: Quantization, ranks: int, numbers: dict[str, Any]
) -> dict[str, Any]:
    return {
        "model": model,
        "quantization": quantization.value,
        "tensor_parallel_size": ranks,
        **numbers,
    }


def read_config(path: Path | None) -> dict[str, Any]:
    """A Serve config as plain data; without a path, the demo's. The launcher checks its content."""
    settings = read_yaml(path, "config") if path is not None else _demo_config()
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: must hold a mapping, as `serve deploy` takes", field="config")
    return settings


def _demo_config() -> Any:
    package, name = DEMO_CONFIG
    try:
        text = resources.files(package).joinpath(name).read_text("utf-8")
    except (OSError, ModuleNotFoundError) as error:
        raise ConfigError(f"cannot read {name}: {error}", field="config") from None
    return parse_yaml(text, name, "config")


@contextmanager
def _located(path: Path | None) -> Iterator[None]:
    """What is wrong with the content of a file gets the line that it is wrong in."""
    try:
        yield
    except ConfigError as error:
        if path is None or error.field is None:
            raise
        line = line_of(path.read_text("utf-8-sig"), tuple(error.field.split(".")))
        if line is None:
            raise
        raise ConfigError(f"{path}, line {line}: {error.message}", field=error.field) from None


def serve_config(
    target: dict[str, Any],
    draft: dict[str, Any] | None,
    *,
    max_num_speculative_tokens: int,
    max_model_len: int | None,
    model_name: str | None,
) -> dict[str, Any]:
    """The Serve config of one application, as `serve deploy` takes it."""
    scheduler = {"max_model_len": max_model_len} if max_model_len else {}
    drafters = ["draft", "ngram"] if draft else ["ngram"]
    arguments: dict[str, Any] = {
        "target": {
            "target": target,
            "scheduler": scheduler,
            "speculation": {
                "max_num_speculative_tokens": max_num_speculative_tokens,
                "drafters": drafters,
            },
        },
        "target_resources": _rank_resources(target),
        "gateway": {"model_name": model_name} if model_name else {},
    }
    if draft:
        arguments["draft"] = {
            "draft": draft,
            "scheduler": dict(scheduler),
            "max_num_speculative_tokens": max(1, max_num_speculative_tokens),
        }
        arguments["draft_resources"] = _rank_resources(draft)
    application = {
        "name": "specdec",
        "route_prefix": "/",
        "import_path": IMPORT_PATH,
        "args": arguments,
    }
    return {"applications": [application]}


def _rank_resources(model: dict[str, Any]) -> dict[str, float]:
    return {"num_gpus": 1} if model["device"] == "cuda" else {"num_cpus": CPU_RANK_CPUS}


def apply_network(
    settings: dict[str, Any], host: str | None, http_port: int | None, grpc_port: int | None
) -> None:
    """Flags win over the file; what neither says is localhost, 8000 and 9000."""
    http, grpc = _section(settings, "http_options"), _section(settings, "grpc_options")
    http["host"] = host or http.get("host", "127.0.0.1")
    http["port"] = http_port or http.get("port", 8000)
    grpc["port"] = grpc_port or grpc.get("port", 9000)
    grpc.setdefault("grpc_servicer_functions", [SERVICER])


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """A mapping of the config, which is there from now on."""
    section = settings.get(name)
    if section is None:
        section = settings[name] = {}
    if not isinstance(section, dict):
        raise ConfigError(f"config: {name}: must be a mapping", field=name)
    return section


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _launch_here(
    settings: dict[str, Any], ray_host: str, asked: Ingress, ready_timeout_s: float
) -> None:
    """Set what Ray must find in its environment, then import what imports Ray."""
    environment = _import(ENVIRONMENT)
    front = environment.Front(
        ingress=environment.choose_ingress(asked.value),
        host=str(settings["http_options"]["host"]),
        grpc_port=settings["grpc_options"]["port"],
        longest_request_s=longest_request_s(settings),
    )
    # In /tmp whatever TMPDIR says: the path of a socket may have a hundred characters only.
    with tempfile.TemporaryDirectory(prefix="specdec-", dir="/tmp") as folder:
        os.environ.update(environment.variables(front, ray_host, Path(folder)))
        launcher = _import(LAUNCHER)
        launcher.launch_here(
            settings,
            ray_host,
            front.ingress == "haproxy",
            ready_timeout_s,
            _announce(settings, _what_runs(front.ingress)),
        )


def _import(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SpecdecError(f"serving needs {error.name}: pip install 'specdec[serve]'") from None


def _what_runs(ingress: str) -> list[str]:
    """What somebody who starts a server should know of it."""
    lines = ["  ingress  HAProxy"]
    if ingress == "python":
        lines = [
            "  ingress  Serve's Python proxy: gRPC clients who leave may not be noticed "
            "(HAProxy notices, and is faster)"
        ]
    mode = os.environ["RAY_AUTH_MODE"]
    if mode != "token":
        lines.append(
            f"  [bold red]warning[/]  RAY_AUTH_MODE is {mode}: whoever reaches Ray's ports runs "
            "code as this user"
        )
    return lines


def longest_request_s(settings: dict[str, Any]) -> float:
    """The longest that any request of the config's applications may take. The launcher says what is
    wrong with a config that has another shape."""
    limits = [DEFAULT_REQUEST_TIMEOUT_S]
    applications = settings.get("applications")
    for part in applications if isinstance(applications, list) else []:
        for key in ("args", "gateway", "request_timeout_s"):
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, int | float):
            limits.append(float(part))
    return max(limits)


def _announce(settings: dict[str, Any], what_runs: list[str]) -> Callable[[], None]:
    """Say where it serves, once it does, and prove it with a first answer."""
    host, port = settings["http_options"]["host"], settings["http_options"]["port"]
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0") else host
    grpc_address = f"{shown}:{settings['grpc_options']['port']}"
    lines = (
        "[bold green]ready[/]",
        f"  page  http://{shown}:{port}/",
        f"  HTTP  http://{shown}:{port}/v1",
        f"  gRPC  {grpc_address}",
        f'  try   specdec generate "{FIRST_PROMPT}" --address {grpc_address} --show',
        "  stop  Ctrl-C",
        *what_runs,
    )

    def announce() -> None:
        messages().print("\n".join(lines))
        messages().print(escape(_proof(grpc_address, settings)), highlight=False)

    return announce


def _proof(address: str, settings: dict[str, Any]) -> str:
    """A first answer, where nobody asks for a key or ours is known."""
    place, key = _keys_place(settings), os.environ.get(API_KEY_VARIABLE)
    if place is not None and key is None:
        return f"  for a first answer, set {API_KEY_VARIABLE} to one of the keys in {place}"
    return _first_answer(address, key)


def _first_answer(address: str, api_key: str | None) -> str:
    try:
        with Client(address, api_key=api_key) as client:
            answer = client.complete(
                FIRST_PROMPT, max_tokens=24, temperature=0, timeout_s=FIRST_ANSWER_TIMEOUT_S
            )
    except SpecdecError as error:
        return f"  no first answer: {error.message}"
    return f"  first answer  {FIRST_PROMPT}{answer.text}"


def _keys_place(settings: dict[str, Any]) -> str | None:
    """The file or environment variable that the gateway reads its API keys from."""
    for application in settings["applications"]:
        gateway = (application.get("args") or {}).get("gateway") or {}
        place = gateway.get("api_keys_file") or gateway.get("api_keys_env")
        if place:
            return str(place)
    return None
