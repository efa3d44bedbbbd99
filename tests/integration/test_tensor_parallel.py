"""Four gloo ranks against one, and what happens when a rank is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.errors import ConfigError, UnavailableError
from specdec.model.executor import LocalExecutor, build_executor
from specdec.model.local_workers import LocalWorkers
from specdec.model.parallel import TensorParallelExecutor, spawn_local
from specdec.model.ranks import Deadlines, RankSpec, listen
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SIZE = 4
VOCAB = 97  # odd, so that the ranks' shares of the head differ
BLOCK_SIZE = 4
# Promised are 5 s, of which the code's own deadlines take 4; the rest is slack for a busy machine.
# Without those deadlines a lost rank would be waited for as long as for one that loads: 15 minutes.
NOTICE_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random Llama with 8 heads and 4 key/value heads, stored in float64."""
    return _save_llama(tmp_path_factory.mktemp("llama"), tied=False)


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory) -> Path:
    """The same with one matrix for the embedding and the head, as small models have it."""
    return _save_llama(tmp_path_factory.mktemp("tied_llama"), tied=True)


def _save_llama(path: Path, tied: bool) -> Path:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        LlamaForCausalLM(config).double().save_pretrained(path)
    return path


def _spec(folder: Path, dtype: str = "float64", size: int = SIZE) -> RankSpec:
    model = ModelConfig(
        model=str(folder), dtype=dtype, device="cpu", tensor_parallel_size=size, num_threads=1
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=40)
    return RankSpec(model, cache, max_num_tokens=256, max_num_logit_rows=64)


def _start(spec: RankSpec) -> tuple[TensorParallelExecutor, LocalWorkers]:
    store = listen("127.0.0.1", spec)
    workers = LocalWorkers(spec, "127.0.0.1", store.port)
    return TensorParallelExecutor.start(spec, store, workers), workers


def _one_rank(spec: RankSpec) -> LocalExecutor:
    model = spec.model.model_copy(update={"tensor_parallel_size": 1})
    runner = ModelRunner.build(model, spec.cache, max_num_tokens=256, max_num_logit_rows=64)
    return LocalExecutor(runner)


def _plans() -> list[tuple[StepPlan, list[tuple[int, int]]]]:
    """Prefill in chunks, decode, verify draft tokens; with the rows of logits as (sequence, index
    of the token whose successor they predict). The block tables are scattered."""
    tables = ([9, 2, 31, 5, 17], [0, 30, 12])
    steps = (
        [(0, 0, 10, 0), (1, 0, 5, 1)],
        [(0, 10, 2, 1), (1, 5, 1, 1)],
        [(0, 12, 1, 1), (1, 6, 4, 4)],
        [(1, 8, 2, 2), (0, 13, 5, 5)],
    )
    plans = []
    for step in steps:
        plan, rows = StepPlan(), []
        for sequence, start, count, num_rows in step:
            tokens = _tokens(sequence)[start : start + count]
            plan.add(tokens, start, tables[sequence], BLOCK_SIZE, num_rows)
            rows += [(sequence, start + count - num_rows + row) for row in range(num_rows)]
        plans.append((plan, rows))
    return plans


def _tokens(sequence: int) -> list[int]:
    return [(11 * sequence + 29 * index + index * index) % VOCAB for index in range(20)]


def _assert_equal_to_one_rank(executor, spec: RankSpec, tolerance: float) -> None:
    """Within `tolerance` of the largest logit."""
    alone = _one_rank(spec)
    for plan, _ in _plans():
        logits = executor.execute(plan)
        assert logits.shape == (len(plan.logit_rows), VOCAB)
        expected = alone.execute(plan)
        scale = max(1.0, expected.abs().max().item()) if len(expected) else 1.0
        torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance * scale)


def _assert_equal_to_transformers(executor, folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        expected = [model(torch.tensor([_tokens(s)])).logits[0] for s in range(2)]
    for plan, rows in _plans():
        logits = executor.execute(plan)
        for row, (sequence, index) in zip(logits, rows, strict=True):
            torch.testing.assert_close(row, expected[sequence][index], rtol=0, atol=1e-10)


def _is_gone(pid: int) -> bool:
    """Ended; an orphan that nobody reaps stays as a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _assert_gone(pids: list[int], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not all(map(_is_gone, pids)):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if not _is_gone(p)]}"
        time.sleep(0.05)


def _assert_lost(executor: TensorParallelExecutor, pids: list[int]) -> None:
    """No process left, the loss remembered, this process free for another group."""
    _assert_gone(pids, within_s=0.0)
    assert executor.failure is not None
    with pytest.raises(UnavailableError):
        executor.execute(_plans()[0][0])
    executor.shutdown()
    assert not dist.is_initialized()


def test_four_ranks_equal_one_and_shut_down(folder):
    spec = replace(_spec(folder), deadlines=Deadlines(plan_s=8.0))
    executor, workers = _start(spec)
    try:
        assert (executor.vocab_size, executor.num_blocks, executor.block_size) == (VOCAB, 40, 4)
        assert executor.model_max_len == 256
        _assert_equal_to_one_rank(executor, spec, tolerance=1e-12)
        _assert_equal_to_transformers(executor, folder)
        _assert_long_plan_runs(executor, spec)
        # Longer than the workers wait for a plan: idle plans must have kept them.
        time.sleep(spec.deadlines.plan_s + 1)
        assert executor.execute(StepPlan()).shape == (0, VOCAB)
        _assert_equal_to_one_rank(executor, spec, tolerance=1e-12)
        with pytest.raises(ConfigError, match="already holds"):
            spawn_local(spec)
    finally:
        began = time.monotonic()
        executor.shutdown()
    assert time.monotonic() - began < NOTICE_S
    assert workers.exit_codes == [0, 0, 0]
    assert not dist.is_initialized()
    executor.shutdown()


def _assert_long_plan_runs(executor, spec: RankSpec) -> None:
    """A plan that needs a second broadcast: its numbers are more than the first one holds."""
    plan = StepPlan()
    for _ in range(34):
        plan.add([token % VOCAB for token in range(30)], 0, list(range(8)), BLOCK_SIZE, 0)
    plan.logit_rows = [len(plan.token_ids) - 1]
    torch.testing.assert_close(
        executor.execute(plan), _one_rank(spec).execute(plan), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_rank_is_an_error_within_seconds(folder, fate):
    executor, workers = _start(_spec(folder))
    pids = workers.pids
    plan = _plans()[0][0]
    executor.execute(plan)
    os.kill(pids[1], fate)
    began = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        _execute_for(executor, plan, NOTICE_S)
    assert time.monotonic() - began < NOTICE_S
    if fate == signal.SIGKILL:
        assert f"rank 2 (process {pids[1]}) was ended by signal SIGKILL" in caught.value.message
    _assert_lost(executor, pids)


def _execute_for(executor: TensorParallelExecutor, plan: StepPlan, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        executor.execute(plan)


def test_lost_rank_is_noticed_without_a_request(folder):
    executor, workers = _start(_spec(folder, size=2))
    os.kill(workers.pids[0], signal.SIGSTOP)
    deadline = time.monotonic() + NOTICE_S
    while executor.failure is None:
        assert time.monotonic() < deadline, "the loss was not noticed"
        time.sleep(0.05)
    # The failure is known before the last process is ended; execute waits for that.
    with pytest.raises(UnavailableError, match="tensor-parallel group lost"):
        executor.execute(_plans()[0][0])
    _assert_lost(executor, workers.pids)


RANK_0 = """
import sys, time
from pathlib import Path
from specdec.model.local_workers import LocalWorkers
from specdec.model.parallel import TensorParallelExecutor
from specdec.model.ranks import RankSpec, listen
from specdec.config import CacheConfig, ModelConfig
if __name__ == "__main__":
    model = ModelConfig(model=sys.argv[1], dtype="float64", device="cpu", num_threads=1,
                        tensor_parallel_size=2)
    spec = RankSpec(model, CacheConfig(block_size=4, num_blocks=8), 16, 16)
    store = listen("127.0.0.1", spec)
    workers = LocalWorkers(spec, "127.0.0.1", store.port)
    executor = TensorParallelExecutor.start(spec, store, workers)
    print(*workers.pids, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_end_when_rank_0_is_lost(folder, tmp_path, fate):
    rank_0, pids = _start_rank_0(folder, tmp_path, lives_s=150)
    try:
        rank_0.send_signal(fate)
        _assert_gone(pids, within_s=NOTICE_S)
    finally:
        rank_0.kill()
        rank_0.wait(10)


def test_workers_end_when_rank_0_exits_without_shutdown(folder, tmp_path):
    rank_0, pids = _start_rank_0(folder, tmp_path, lives_s=0)
    assert rank_0.wait(60) == 0
    _assert_gone(pids, within_s=NOTICE_S)


def _start_rank_0(folder: Path, tmp_path: Path, lives_s: float):
    script = tmp_path / "rank_0.py"
    script.write_text(RANK_0)
    command = [sys.executable, str(script), str(folder), str(lives_s)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


FOREIGN_WORKER = """
import os, random, sys
import numpy, torch
from specdec.model import ranks
from specdec.config import CacheConfig, ModelConfig
rank, port = int(sys.argv[2]), int(sys.argv[3])

def states():
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

def watched(group, runner, loop=ranks.worker_loop):
    random.seed(rank), numpy.random.seed(rank), torch.manual_seed(rank)
    before = states()
    loop(group, runner)
    assert states() == before, "a worker drew a random number"

ranks.worker_loop = watched
model = ModelConfig(model=sys.argv[1], dtype="float32", device="cpu", num_threads=1,
                    tensor_parallel_size=4)
spec = ranks.RankSpec(model, CacheConfig(block_size=4, num_blocks=40), 256, 64)
ranks.run_worker(rank, spec, "127.0.0.1", port, local_rank=0)
os._exit(0)  # Taking torch down takes seconds on a busy machine.
"""


class ForeignWorkers:
    """Ranks that something else than LocalWorkers started, as Ray would."""

    def __init__(self, folder: Path, port: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", FOREIGN_WORKER, str(folder)]
        self.processes = [
            subprocess.Popen([*command, str(rank), str(port)], env=environment)
            for rank in range(1, SIZE)
        ]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def lost(self, within_s: float = 0.0) -> str | None:
        codes = [process.poll() for process in self.processes]
        return f"exit codes {codes}" if any(code is not None for code in codes) else None

    def end(self, deadline_s: float) -> None:
        for process in self.processes:
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def test_float32_and_ranks_with_generators_of_their_own(tied_folder):
    """Nothing in a rank draws, so that ranks whose generators differ cannot disagree."""
    spec = _spec(tied_folder, dtype="float32")
    store = listen("127.0.0.1", spec)
    workers = ForeignWorkers(tied_folder, store.port)
    executor = TensorParallelExecutor.start(spec, store, workers)
    generator = torch.get_rng_state()
    _assert_equal_to_one_rank(executor, spec, tolerance=4e-6)
    assert torch.equal(torch.get_rng_state(), generator)
    executor.shutdown()
    assert [process.returncode for process in workers.processes] == [0, 0, 0]


class DeadWorkers:
    """Workers that failed before they reached the store."""

    ended = False
    pids: tuple[int, ...] = ()

    def lost(self, within_s: float = 0.0) -> str | None:
        return "rank 1 ended with exit code 1"

    def end(self, deadline_s: float) -> None:
        self.ended = True


def test_worker_that_fails_at_start_is_reported_at_once(folder):
    spec = _spec(folder)
    workers = DeadWorkers()
    with pytest.raises(UnavailableError, match="rank 1 ended with exit code 1"):
        TensorParallelExecutor.start(spec, listen("127.0.0.1", spec), workers)
    assert workers.ended
    assert not dist.is_initialized()


def test_model_that_cannot_be_loaded_leaves_no_process(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises((OSError, UnavailableError)):
        spawn_local(_spec(tmp_path, size=2))
    assert not dist.is_initialized()
    assert not [child for child in psutil.Process().children() if "spawn_main" in child.cmdline()]


def test_size_that_does_not_fit_is_refused_before_anything_starts(folder):
    model = ModelConfig(model=str(folder), device="cpu", tensor_parallel_size=3)
    with pytest.raises(ConfigError, match="8 attention heads; sizes that fit: 1, 2, 4"):
        build_executor(model, CacheConfig(num_blocks=8), SchedulerConfig(), 4)
