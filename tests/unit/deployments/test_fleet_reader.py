"""Who asks the fleet when, and what they get where it is slow; with targets that are scripted."""

from __future__ import annotations

import asyncio
import time

import pytest

from deployments import fleet_reader
from deployments.fleet_ledger import FleetLedger
from deployments.fleet_reader import FleetReader
from deployments.samples import Key
from deployments.target_client import TargetClient
from specdec.engine.counters import EngineCounters
from tests.unit.deployments.test_live_reading import described

STEPS = Key("specdec_steps", "_total")


class Targets:
    """Describes one replica whose steps are the number of queries; `delay_s` may be changed."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.delay_s = 0.0

    async def describe_all(self, timeout_s: float):
        self.num_queries += 1
        steps = self.num_queries
        await asyncio.sleep(self.delay_s)
        return [described(counters=EngineCounters(num_steps=steps))]


class Shared:
    """The ledger's actor, without Ray."""

    def __init__(self) -> None:
        self.ledger = FleetLedger()
        self.num_exchanges = 0
        self.merge = self

    async def remote(self, known):
        self.num_exchanges += 1
        return dict(self.ledger.merge(known))


@pytest.fixture
def targets():
    return Targets()


@pytest.fixture
def shared(monkeypatch):
    actor = Shared()
    monkeypatch.setattr(fleet_reader.serve, "get_deployment_actor", lambda name: actor)
    return actor


@pytest.fixture
def reader(targets, shared):
    return FleetReader(targets)


async def test_many_who_watch_cost_one_query_and_get_the_same(reader, targets):
    targets.delay_s = 0.05
    readings = await asyncio.gather(*(reader.watch() for _ in range(20)))
    assert targets.num_queries == 1
    assert all(reading is readings[0] for reading in readings)
    assert await reader.watch() is readings[0]


async def test_one_who_asks_again_at_once_does_not_spoil_the_reading_of_others(
    reader, targets, monkeypatch
):
    """The next query may begin before all who waited for the last one have taken its reading."""
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.0)
    targets.delay_s = 0.001

    async def poll() -> list[float]:
        return [(await reader.watch()).counters[STEPS] for _ in range(20)]

    for steps in await asyncio.gather(*(poll() for _ in range(5))):
        assert steps == sorted(steps)


async def test_after_a_while_they_get_a_new_one(reader, targets, monkeypatch):
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.0)
    first, second = await reader.watch(), await reader.watch()
    assert (first.counters[STEPS], second.counters[STEPS]) == (1, 2)
    assert second.time_s >= first.time_s


async def test_a_scrape_has_a_query_of_its_own_that_the_watching_share(reader, targets):
    await reader.watch()
    scraped = await reader.read()
    assert targets.num_queries == 2
    assert await reader.watch() is scraped


async def test_while_the_fleet_is_slow_they_get_the_last_one_at_once(reader, targets, monkeypatch):
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.0)
    first = await reader.watch()
    targets.delay_s = 2.0
    started_s = time.monotonic()
    assert await reader.watch() is first
    assert await reader.watch() is first
    assert time.monotonic() - started_s < 1.5
    assert targets.num_queries == 2


async def test_what_is_too_old_is_not_told_as_live(reader, targets, monkeypatch):
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.0)
    monkeypatch.setattr(fleet_reader, "MAX_AGE_S", 0.0)
    await reader.watch()
    targets.delay_s = 0.2
    assert (await reader.watch()).counters[STEPS] == 2


async def test_a_scrape_that_took_long_is_as_old_as_its_question(reader, targets, monkeypatch):
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.3)
    targets.delay_s = 0.4
    await reader.read()
    assert (await reader.watch()).counters[STEPS] == 1  # the scrape's, while the next one runs
    assert targets.num_queries == 2
    monkeypatch.setattr(fleet_reader, "MAX_AGE_S", 0.3)
    assert (await reader.watch()).counters[STEPS] == 2


async def test_one_who_leaves_does_not_end_the_query_of_the_others(reader, targets):
    targets.delay_s = 0.1
    leaving, staying = (asyncio.create_task(reader.watch()) for _ in range(2))
    await asyncio.sleep(0.02)
    leaving.cancel()
    assert (await staying).counters[STEPS] == 1


async def test_watching_exchanges_seldom_and_scraping_always(reader, shared, monkeypatch):
    monkeypatch.setattr(fleet_reader, "REUSE_S", 0.0)
    for _ in range(5):
        await reader.watch()
    assert shared.num_exchanges == 1
    for _ in range(3):
        await reader.read()
    assert shared.num_exchanges == 4


async def test_what_other_gateways_know_is_in_the_totals(reader, shared):
    shared.ledger.merge({"gone": {STEPS: 100}})
    assert (await reader.watch()).counters[STEPS] == 101


async def test_without_the_shared_ledger_ones_own_serves(reader, shared, monkeypatch):
    def away(name):
        raise RuntimeError("no such actor")

    monkeypatch.setattr(fleet_reader.serve, "get_deployment_actor", away)
    assert (await reader.watch()).counters[STEPS] == 1


class Call:
    """One replica's answer to a broadcast."""

    def __init__(self, answer, delay_s: float = 0.0) -> None:
        self.answer, self.delay_s = answer, delay_s

    async def get_async(self):
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Handle:
    """A deployment handle whose replicas answer as they are told."""

    def __init__(self, *calls: Call) -> None:
        self.calls = calls

    def options(self, **given):
        return self

    def broadcast(self, method):
        return self

    async def _fetch_replica_results_async(self):
        return list(self.calls)


async def test_one_replica_that_hangs_or_fails_hides_no_other():
    handle = Handle(
        Call(described("a")), Call(described("b"), 60.0), Call(RuntimeError()), Call(described("c"))
    )
    started_s = time.monotonic()
    answered = await TargetClient(handle, 60.0).describe_all(timeout_s=0.1)
    assert [each.replica_id for each in answered] == ["a", "c"]
    assert time.monotonic() - started_s < 10


async def test_no_replicas_are_an_empty_fleet():
    assert await TargetClient(Handle(), 60.0).describe_all() == []


class TestTotals:
    """Kept up by `merge`, against a sum over all that is known."""

    def check(self, ledger: FleetLedger) -> None:
        summed: dict = {}
        for samples in ledger.merge({}).values():
            for key, value in samples.items():
                summed[key] = summed.get(key, 0) + value
        assert {k: v for k, v in ledger.totals().items() if v or k in summed} == summed

    def test_they_are_the_sum_of_what_is_known(self):
        ledger = FleetLedger(max_replicas=3)
        other = Key("specdec_drafts", "_total")
        for replica, steps in [("a", 3), ("b", 5), ("a", 2), ("a", 7), ("c", 1), ("d", 4)]:
            ledger.merge({replica: {STEPS: steps, other: 2 * steps}})
            self.check(ledger)
        assert ledger.totals()[STEPS] == 7 + 1 + 4  # b, not heard of for longest, is let go


def test_a_full_ledger_lets_go_of_those_that_are_gone():
    ledger = FleetLedger(max_replicas=2)
    for steps, other in enumerate(("b", "c", "d"), start=1):
        ledger.merge({"alive": {STEPS: 10 * steps}})
        ledger.merge({other: {STEPS: 1}})
    assert set(ledger.merge({"alive": {STEPS: 40}})) == {"alive", "d"}
    assert ledger.totals() == {STEPS: 41}
