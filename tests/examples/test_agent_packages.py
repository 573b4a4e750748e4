"""The agents of examples/agents with their real packages: five iterations each. `make test-agents` runs these."""

import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Fast
from tools.agent_environments import AGENTS

import groupwise as gw
from groupwise.models import DecoderShape, Tokenizer, write_fresh
from groupwise.runs.run_layout import RunLayout
from tests.models.test_templates import CHATML, SPECIAL

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

HOME = AGENTS.parents[1]
ENVIRONMENTS = HOME / ".venv-agents"
SETTINGS: dict[str, Any] = {
    "agent": gw.Agent(), "template": "chat", "method": "dr_grpo", "iterations": 5, "prompts": 1, "method.group_size": 2,
    "evaluate.every": 0, "evaluate.problems": 1, "save.every": 1, "sampling.max_tokens": 96, "sampling.stop": ("e",),
    "optimizer.lr": 1e-3,
}  # fmt: skip
"""Two runs of the agent per iteration. Answers of the random model end at an `e`, so a conversation has several."""
SUMS = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1), "steps": 1} for a in range(1, 5)]
REPOSITORY = [{"task": f"add(2, {b}) returns {2 - b}.", "steps": 3} for b in range(3, 7)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of one layer with a tokenizer of English, for prompts of 10,000 characters."""
    fast = Fast(models.BPE())
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    fast.train([str(path) for path in sorted(HOME.glob("docs/t*.md"))], trainer)
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer = Tokenizer.of(fast, {fast.token_to_id("<|im_end|>")})
    config = json.loads(dict(tokenizer.extra_files)["tokenizer_config.json"]) | {"chat_template": CHATML}
    files = (("tokenizer_config.json", json.dumps(config).encode()),)
    path = tmp_path_factory.mktemp("model")
    shape = DecoderShape(
        vocabulary_size=fast.get_vocab_size(), hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=64,
        max_positions=16384, model_family="qwen3", qk_norm=True, tied_embeddings=True,
    )  # fmt: skip
    write_fresh(shape, path, tokenizer=Tokenizer(tokenizer.tokenizer_json, tokenizer.eos_ids, files))
    return path


def command(agent: str, *arguments: str) -> list[str]:
    """The command of an agent in its environment. Skips, and fails under CI, where it was not made."""
    node = agent.endswith(".js")
    environment = ENVIRONMENTS / ("node" if node else Path(agent).stem)
    if not environment.is_dir():
        pytest.fail(f"no {environment}: make test-agents") if os.environ.get("CI") else pytest.skip("make test-agents")
    program = ["node", str(environment / agent)] if node else [str(environment / "bin/python"), str(AGENTS / agent)]
    return [*program, *arguments]


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The address of OpenEnv's environment that echoes, in a process of its own."""
    directory = ENVIRONMENTS / "openenv_agent" / "echo_env"
    python = command("openenv_agent.py")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = directory / "server" / "app.py"
    app.write_text(re.sub(r"max_concurrent_envs=\d+", "max_concurrent_envs=8", app.read_text()))
    server = subprocess.Popen(
        [python, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "error"], cwd=directory
    )
    address = f"http://127.0.0.1:{port}"
    try:
        transport = httpx2.HTTPTransport(retries=60)  # with growing pauses
        with httpx2.Client(transport=transport, trust_env=False, timeout=60) as client:
            client.get(f"{address}/health")
        yield address
    finally:
        server.terminate()
        server.wait()


def options(words: list[str]) -> dict[str, Any]:
    """What `--agent-command` says, as arguments of `gw.train` and `gw.resume`."""
    return {"permissions": gw.Permissions(agent_command=shlex.join(words))}


def trained(model: Path, out: Path, rows: list[dict[str, Any]], words: list[str]) -> Any:
    """A run of five iterations that stops after two, and is resumed."""

    def stop(run: Any, line: Any) -> None:
        if line["iteration"] == 2:
            run.stop()

    part = gw.train(model=model, data=rows, out=out, on_iteration=stop, **options(words), **SETTINGS)
    assert part.done == 2
    run = gw.resume(part, **options(words))
    assert run.done == 5
    return run


def check(run: Any, *, samples: int) -> list[dict[str, Any]]:
    """Check the samples of each iteration, at least so many of one run of the agent, and return those of the last."""
    lines: list[dict[str, Any]] = []
    for iteration in range(1, 6):
        lines = run.samples(iteration)
        assert len(lines) >= 2 * samples and all(line["length"] > 0 for line in lines), lines
        assert {line["outcome"] for line in lines} == {"scored"}, lines
    return lines


def weights(run: Any) -> bytes:
    return (RunLayout(Path(run.directory)).model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("agent", ["openai_agent.py", "agent.js"])
def test_openai(model: Path, tmp_path: Path, agent: str) -> None:
    """Two turns are one sample, and a resumed run has the bytes of one that was never stopped."""
    run = trained(model, tmp_path / "run", SUMS, command(agent))
    lines = check(run, samples=1)
    whole = gw.train(model=model, data=SUMS, out=tmp_path / "whole", **options(command(agent)), **SETTINGS)
    assert weights(run) == weights(whole) and run.metrics == whole.metrics
    assert len(lines) == 2 and run.metrics["episodes/requests"][5] == 2


def test_smolagents(model: Path, tmp_path: Path) -> None:
    """A step and the answer that it falls back to: two prompts, two samples."""
    run = trained(model, tmp_path / "run", SUMS, command("smolagents_agent.py"))
    assert len(check(run, samples=2)) == 4


def test_mini_swe_agent(model: Path, tmp_path: Path) -> None:
    """Its histories leave out an answer without a command, so each request is a sample. One of three checks passes."""
    run = trained(model, tmp_path / "run", REPOSITORY, command("mini_swe_agent.py"))
    lines = check(run, samples=3)
    assert {line["reward"] for line in lines} == {1 / 3}


def test_openenv(model: Path, tmp_path: Path, echo: str) -> None:
    """The environment's rewards: 0.1 for each character of the answers."""
    rows = [{"task": f"Write a word of {n} letters."} for n in range(4, 8)]
    run = trained(model, tmp_path / "run", rows, command("openenv_agent.py", echo))
    assert len({line["reward"] for line in check(run, samples=1)}) == 2


def test_verifiers(model: Path, tmp_path: Path) -> None:
    """A taskset's prompt and reward, over its own server between the agent and the endpoint."""
    words = command("verifiers_agent.py", "sums_taskset")
    run = trained(model, tmp_path / "run", [{"index": i} for i in range(4)], words)
    (line, _) = check(run, samples=1)
    assert "What is 1 + " in line["sampled_from"]
