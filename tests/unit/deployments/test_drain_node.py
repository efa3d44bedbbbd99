"""The preStop hook: it waits for replicas, never too long, and never stands in the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deployments import drain_node


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_it_waits_until_the_last_replica_has_ended():
    clock, counts = Clock(), iter([2, 2, 1, 0])
    left = drain_node.wait_until_empty(lambda: next(counts), 600, clock, clock.sleep)
    assert left == 0
    assert clock.now_s == 100 + 3 * drain_node.POLL_S


def test_it_gives_up_at_the_deadline():
    clock = Clock()
    assert drain_node.wait_until_empty(lambda: 1, 30, clock, clock.sleep) == 1
    assert clock.now_s == pytest.approx(130, abs=drain_node.POLL_S)


def test_an_empty_node_goes_at_once():
    clock = Clock()
    assert drain_node.wait_until_empty(lambda: 0, 600, clock, clock.sleep) == 0
    assert clock.now_s == 100


@pytest.fixture
def fake_ray(tmp_path, monkeypatch):
    """A `ray` on the PATH that does what it is given, and keeps what it was called with."""

    def make(body: str):
        program = tmp_path / "ray"
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n{body}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "called"

    return make


def test_ray_is_asked_for_a_drain_that_moves_replicas(fake_ray):
    called = fake_ray("exit 0")
    assert drain_node.request_drain(600)
    words = called.read_text().split()
    assert words[0] == "drain-node"
    # Ray refuses the other reason, idleness, for a node that is in use.
    assert words[words.index("--reason") + 1] == "DRAIN_NODE_REASON_PREEMPTION"
    assert words[words.index("--deadline-remaining-seconds") + 1] == "600"


def test_the_options_are_those_of_the_installed_ray():
    from ray.scripts.scripts import drain_node as command

    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--reason", "--reason-message", "--deadline-remaining-seconds"} <= options


def test_a_node_that_ray_does_not_drain_is_not_waited_for(fake_ray, monkeypatch, capsys):
    fake_ray("echo 'no cluster' >&2; exit 1")
    monkeypatch.setattr(drain_node, "num_replicas", lambda: pytest.fail("waited"))
    drain_node.main(["--deadline-s", "600"])
    assert "no cluster" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_holds_up_nothing(fake_ray, monkeypatch, capsys):
    fake_ray("exec sleep 30")
    monkeypatch.setattr(drain_node, "REQUEST_TIMEOUT_S", 0.2)
    drain_node.main(["--deadline-s", "600"])
    assert "was not asked" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_a_deadline_must_be_a_number_above_zero(value, capsys):
    with pytest.raises(SystemExit) as exit_:
        drain_node.main(["--deadline-s", value])
    assert exit_.value.code == 2
    assert "--deadline-s" in capsys.readouterr().err


def test_replicas_are_found_by_the_name_that_ray_gives_their_processes():
    before = drain_node.num_replicas()
    titled = "import sys, time; print(flush=True); time.sleep(30)"
    names = ["ray::ServeReplica:specdec:Target", "ray::RankWorker.run", "raylet"]
    children = [
        subprocess.Popen([name, "-c", titled], executable=sys.executable, stdout=subprocess.PIPE)
        for name in names
    ]
    try:
        for child in children:
            child.stdout.readline()
        assert drain_node.num_replicas() == before + 1
    finally:
        for child in children:
            child.kill()
            child.communicate()
