"""The Serve application: gateway -> target -> draft. The only place where everything meets.

`build` is the parameterised form for configs and `serve run`; `app` is the demo, bound.
"""

# No postponed annotations here: Serve turns the arguments of a config into `AppSettings` only where
# it finds the class itself beside the builder's parameter, not its name.
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from deployments.draft import Draft
from deployments.fleet_ledger import LEDGER_ACTOR, FleetLedger
from deployments.gateway import Gateway
from deployments.settings import AppSettings, RankResources, demo_settings
from deployments.target import Target

# The engine queues; Serve must not, or it would hold back what the scheduler should see.
UNLIMITED_REQUESTS = 1_000_000
# Serve replaces a replica that has not answered three checks in a row. The check itself knows of a
# hung engine or a lost rank within seconds; an event loop that is short of CPU must be waited for.
HEALTH_CHECK_TIMEOUT_S = 20
# The gateway on the event loop that writes to its clients: between the two threads that Serve runs
# otherwise stands a queue without an end, and no slow reader is ever felt.
GATEWAY_VARIABLES = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}


def build(args: AppSettings) -> serve.Application:
    """The application for these settings. Serve's own options (replicas, autoscaling, health
    check) can be set per deployment in the config file and win over the defaults here."""
    draft = bind_draft(args) if args.draft is not None else None
    target = bind_target(args, draft)
    gateway = serve.deployment(
        name="Gateway",
        max_ongoing_requests=UNLIMITED_REQUESTS,
        ray_actor_options={"num_cpus": 0.5, "runtime_env": {"env_vars": GATEWAY_VARIABLES}},
        logging_config=_logging(args),
        deployment_actors=[
            DeploymentActorConfig(
                name=LEDGER_ACTOR,
                actor_class=ray.remote(FleetLedger),
                actor_options={"num_cpus": 0},
            )
        ],
    )(Gateway)
    return gateway.bind(args, target)


def bind_draft(args: AppSettings) -> serve.Application:
    """The draft deployment alone; `args.draft` is set."""
    assert args.draft is not None
    deployment = serve.deployment(
        name="Draft",
        max_ongoing_requests=UNLIMITED_REQUESTS,
        health_check_period_s=1,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=1,
        graceful_shutdown_timeout_s=20,
        logging_config=_logging(args),
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.routing:PinnedRouter"
        ),
        **_placement(args.draft_resources, args.draft.draft.tensor_parallel_size),
    )(Draft)
    return deployment.bind(args.draft, args.draft_resources, args.draft_server, args.tracing)


def bind_target(args: AppSettings, draft: DeploymentHandle | None) -> serve.Application:
    """The target deployment, with a draft or none."""
    deployment = serve.deployment(
        name="Target",
        max_ongoing_requests=UNLIMITED_REQUESTS,
        health_check_period_s=1,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=1,
        graceful_shutdown_timeout_s=30,
        logging_config=_logging(args),
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.routing:PrefixAffinityRouter",
            request_routing_stats_period_s=1.0,
        ),
        **_placement(args.target_resources, args.target.target.tensor_parallel_size),
    )(Target)
    return deployment.bind(args.target, args.target_resources, draft, args.tracing)


def _logging(args: AppSettings) -> LoggingConfig:
    """Without Serve's line per call, which would bury the rest: every target asks every draft every
    two seconds. `gateway.log_requests` has one per request."""
    return LoggingConfig(enable_access_log=False, encoding=args.log_format.upper())


def _placement(resources: RankResources, num_ranks: int) -> dict[str, Any]:
    """One bundle per rank, all on one node so that ranks talk over NVLink; the replica is rank 0
    and lives in the first bundle."""
    bundle = {"CPU": resources.num_cpus}
    if resources.num_gpus:
        bundle["GPU"] = resources.num_gpus
    options = {"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus}
    if num_ranks == 1:
        return {"ray_actor_options": options}
    return {
        "ray_actor_options": options,
        "placement_group_bundles": [bundle] * num_ranks,
        "placement_group_strategy": "STRICT_PACK",
    }


app = build(demo_settings())
