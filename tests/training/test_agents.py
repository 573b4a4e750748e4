"""Runs of a recipe with an agent: the recipe's field, whole rows, one advantage per episode, resumed runs."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

import groupwise as gw
from groupwise.__main__ import main
from groupwise.checks import check_agent
from groupwise.checks.check import check
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import InvalidValue, Usage
from groupwise.data import THREAD, Draw, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.environments import LlamaCalls, ToolCall
from groupwise.methods import Method, dr_grpo, gigpo, grpo
from groupwise.objective import episode_mean, sequence_mean
from groupwise.rollout import AgentEpisodes
from groupwise.rollout.agents import runner as runner_file
from groupwise.rollout.agents.openai_clients import URL, EpisodeTransport
from groupwise.runs.run_layout import RunLayout
from groupwise.tasks import RowsTask
from groupwise.training.build_agent_runner import call_format_of
from groupwise.training.loop import compute_advantages


class Client:
    """The one method of `openai.AsyncOpenAI` that these agents call."""

    def __init__(self, endpoint: Any, key: str) -> None:
        self.http = httpx2.AsyncClient(transport=EpisodeTransport(endpoint), base_url=URL)
        self.headers = {"authorization": f"Bearer {key}"}

    async def say(self, text: str, **fields: Any) -> str:
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
        reply = await self.http.post("/chat/completions", json=body, headers=self.headers)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["message"]["content"]


@pytest.fixture(autouse=True)
def plain_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_file, "openai_clients", lambda endpoint: lambda key: Client(endpoint, key))


TINY: dict[str, Any] = {
    "iterations": 2, "prompts": 4, "evaluate.problems": 2, "evaluate.every": 0, "save.every": 1,
    "sampling.max_tokens": 24, "method.group_size": 4,
}  # fmt: skip


async def asks(row: Any, client: Client) -> None:
    await client.say(row["prompt"])


async def two_contexts(row: Any, client: Client) -> float:
    """A solver and a checker, which says the first answer again: the reward is its length."""
    first = await client.say(row["prompt"])
    second = await client.say(row["prompt"] + first[:8])
    return float(len(second) % 7)


def weights(run: Any) -> bytes:
    return (RunLayout(Path(run.directory)).model / "model.safetensors").read_bytes()


def test_an_agent_that_asks_the_prompt_trains_the_bytes_of_a_run_without_one(tmp_path: Path) -> None:
    one = gw.train(agent=asks, out=tmp_path / "a", **TINY)
    other = gw.train(out=tmp_path / "b", **TINY)
    assert weights(one) == weights(other)
    assert one.metrics["completions/mean_length"] == other.metrics["completions/mean_length"]


def test_a_plain_agent_over_http_trains_the_bytes_of_an_async_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clients(url: str, key: str) -> httpx2.Client:
        return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False)

    def say(http: httpx2.Client, text: str) -> str:
        body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
        return http.post("/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    def plain(row: Any, client: httpx2.Client) -> float:
        with client:
            return float(len(say(client, row["prompt"] + say(client, row["prompt"])[:8])) % 7)

    monkeypatch.setattr(runner_file, "plain_clients", lambda: clients)
    here = gw.train(agent=two_contexts, out=tmp_path / "a", **TINY)
    there = gw.train(agent=plain, out=tmp_path / "b", **{**TINY, "agent.processes": 3})
    assert weights(here) == weights(there)
    lines = [RunLayout(Path(run.directory)).metrics.read_text() for run in (here, there)]
    assert lines[0] == lines[1]


def test_a_run_of_an_agent_continues_to_the_same_bytes(tmp_path: Path) -> None:
    whole = gw.train(agent=two_contexts, out=tmp_path / "a", **TINY)
    part = gw.train(agent=two_contexts, out=tmp_path / "b", on_iteration=lambda run, line: run.stop(), **TINY)
    with pytest.raises(Usage, match="is an agent without a file"):
        gw.resume(part)
    done = gw.resume(part, agent=two_contexts)
    assert weights(done) == weights(whole)
    line = json.loads(RunLayout(Path(whole.directory)).metrics.read_text().splitlines()[-1])
    assert line["rollout/roles/thread"] > 0 and line["episodes/samples"] == line["episodes/requests"] == 2


@pytest.mark.slow
def test_an_agent_trains_the_same_bytes_with_engines_in_other_processes(tmp_path: Path) -> None:
    """The streams of an agent's calls are digests of their tokens, and its settings are of each call: all go over."""

    async def agent(row: Any, client: Client) -> float:
        first = await client.say(row["prompt"], stop=["#"], max_tokens=9)
        return float(len(await client.say(row["prompt"] + first[:8], temperature=0.5)) % 7)

    small = {**TINY, "method.group_size": 2, "evaluate.problems": 1}
    here = gw.train(agent=agent, out=tmp_path / "a", **small)
    there = gw.train(agent=agent, out=tmp_path / "b", **small, engine=gw.Served(replicas=2))
    assert weights(here) == weights(there)
    lines = [json.loads(RunLayout(Path(run.directory)).metrics.read_text().splitlines()[-1]) for run in (here, there)]
    assert lines[0]["completions/mean_length"] == lines[1]["completions/mean_length"] > 0


def test_rows_of_an_agent_need_no_column(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def agent(row: Any, client: Client) -> bool:
        seen.append({name: row[name] for name in row if name != "prompt"})
        return len(await client.say(f"{row['a']}+{row['b']}=")) % 2 == 0

    rows = [{"a": i, "b": 2, "note": "x" * 20_000} for i in range(12)]
    gw.train(agent=agent, data=rows, out=tmp_path, **{**TINY, "evaluate.problems": 1})
    assert all(row in rows for row in seen)


def test_whole_rows_are_read_with_or_without_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1=", "gold": 2}\n{"a": [1]}\n')
    problems = RowsTask.read(
        path, lambda text: tuple(range(len(text))), prompt="question", answer="gold", whole_rows=True
    )
    asked, bare = sorted((*problems.training, *problems.held_out), key=lambda prompt: prompt.id)
    assert (asked.token_ids, dict(asked.row)) == ((0, 1, 2, 3), {"question": "1+1=", "gold": 2, "answer": 2})
    assert (bare.token_ids, bare.text, dict(bare.row)) == ((), '{"a": [1]}', {"a": [1]})


# Programs

PROGRAM = """
import json, os, sys, urllib.request
row = json.loads(os.environ["GROUPWISE_ROW"])
body = {"model": "policy", "messages": [{"role": "user", "content": row["prompt"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                 {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def test_a_program_trains_the_bytes_of_a_run_without_an_agent_and_is_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program asks the row's prompt, and the verifier grades its answer. A resumed run needs the word again."""
    file = tmp_path / "agent.py"
    file.write_text(PROGRAM)
    small = {**TINY, "iterations": 1, "method.group_size": 2, "prompts": 2, "method.minibatches": 1}
    small |= {"evaluate.problems": 1, "seed": 2}
    words = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    program = ["--agent-command", f"{sys.executable} {file}"]
    assert main(["train", *program, "--agent.processes", "3", "--out", str(tmp_path / "a"), *words]) == 0
    (run,) = (tmp_path / "a").iterdir()
    recipe = read_recipe(RunLayout(run).recipe.read_text())
    assert recipe.agent == gw.Agent(processes=3) and str(file) not in RunLayout(run).recipe.read_text()
    plain = gw.train(out=tmp_path / "b", **small)
    assert plain.metrics["grad_norm"][1] > 0
    assert (RunLayout(run).model / "model.safetensors").read_bytes() == weights(plain)
    assert {path.name for path in RunLayout(run).agents.glob("draw-*.out")} == {
        f"draw-{i}-{j}.out" for i in range(2) for j in range(2)
    }
    capsys.readouterr()
    again = ["resume", str(run), "--iterations", "2"]
    assert main(again) == 2 and f"add --agent-command '{program[1]}'" in capsys.readouterr().err
    assert main([*again, "--agent-command", f"{sys.executable} -c pass"]) == 3
    assert "is not the one of this run" in capsys.readouterr().err
    assert main([*again, *program]) == 0


def test_the_program_of_an_agent_is_a_word_of_the_command_line_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    source = f'model = "calculator"\ntask = "{path}"\nmethod = "grpo"\n[agent]\ndeadline = 20.0'
    command = f"{sys.executable} {tmp_path / 'agent.py'}"
    (tmp_path / "agent.py").write_text(PROGRAM.replace('row["prompt"]', '"1+1="'))
    (error,) = check(source, (), UserCode()).errors
    assert "the command names none" in str(error) and "--agent-command" in str(error)
    (error,) = check(source, (), UserCode(agent_command=command)).errors
    assert "returns no reward" in str(error) and '{"reward": 0.5}' in str(error)
    (error,) = check('method = "grpo"', (), UserCode(agent_command=command)).errors
    assert "the recipe has no agent" in str(error)
    errors = check(source + '\ncommand = "touch x"', (), UserCode(agent_command=command)).errors
    assert any("no field" in str(error) or "command" in str(error) for error in errors)
    with pytest.raises(Usage, match="agent_command is a permission"):
        gw.train(agent_command=command)


# The recipe


FILE = """
from groupwise.environments import ToolCall

async def agent(row, client):
    return 1.0

number = 1

async def two(a, b, c):
    return 1.0

class Arrows:
    def parse(self, turn):
        name, arrow, argument = turn.partition("->")
        return (turn, []) if not arrow else ("", [ToolCall(name, {"x": int(argument)})])

class NoCalls:
    def parse(self, turn):
        return turn
"""


@pytest.fixture
def use(tmp_path: Path) -> UserCode:
    path = tmp_path / "my_agent.py"
    path.write_text(FILE)
    return load_use(Permissions(use=[path]))


def test_a_text_is_short_for_the_table(use: UserCode) -> None:
    recipe = read_recipe('agent = "my_agent:agent"\nmethod = "grpo"', (), use)
    assert recipe.agent == gw.Agent(file="my_agent:agent") and recipe.agent.deadline == 600
    assert recipe.method.strategy == AgentEpisodes() == recipe.evaluate.strategy
    assert recipe.method.trained_roles == ("answer", THREAD)
    assert read_recipe(write(recipe), (), use) == recipe
    changes = [("agent.deadline", 20.0), ("agent", "my_agent:agent")]  # --agent my_agent.py:agent --agent.deadline 20
    for source, given in (("", changes), ('agent = "my_agent:agent"\n', changes[:1])):
        both = read_recipe(f'{source}method = "grpo"', given, use)
        assert both.agent == gw.Agent(file="my_agent:agent", deadline=20.0)


def test_a_recipe_alone_loads_no_agent() -> None:
    for fault in check('agent = "my_agent:agent"\nmethod = "grpo"').errors:
        assert "add --use my_agent.py" in str(fault) or "not loaded" in str(fault)
    with pytest.raises(Usage, match="not loaded"):
        read_recipe('agent = "my_agent:agent"\nmethod = "grpo"', (), UserCode())


def test_a_recipe_may_name_the_file_of_its_agent_with_or_without_its_ending(use: UserCode) -> None:
    for name in ("my_agent:agent", "my_agent.py:agent"):
        checked = check(f'agent = "{name}"\nmethod = "grpo"', (), use)
        assert not checked.errors and any("the agent made no request" in note for note in checked.notes)


@pytest.mark.parametrize("name", ["number", "two"])
def test_a_function_that_is_no_agent_is_refused(use: UserCode, name: str) -> None:
    checked = check(f'agent = "my_agent:{name}"\nmethod = "grpo"', (), use)
    assert any("cannot be called" in str(error) and "def agent(row, client)" in str(error) for error in checked.errors)


def test_tool_calls_are_read_by_the_parser_that_the_recipe_names(use: UserCode) -> None:
    def parser(name: str) -> Any:
        return call_format_of(gw.Agent(file="my_agent:agent", tool_call_parser=name), use)

    assert parser("") is None and isinstance(parser("llama3_json"), LlamaCalls)
    assert parser("my_agent:Arrows").parse("add->3") == ("", [ToolCall("add", {"x": 3})])
    with pytest.raises(Usage, match=r"my_agent:Arrows failed\n  seen: my_agent.py:\d+ in parse: ValueError"):
        parser("my_agent:Arrows").parse("add->three")
    with pytest.raises(Usage, match="return the text and a list of ToolCall"):
        parser("my_agent:NoCalls").parse("ab")
    for wrong, advice in (("qwen", "use hermes, llama3_json, mistral"), ("my_agent:two", "a method parse")):
        recipe = f'agent = {{ file = "my_agent:agent", tool_call_parser = "{wrong}" }}\nmethod = "grpo"'
        assert any(advice in str(error) for error in check(recipe, (), use).errors), wrong


def test_an_agent_excludes_an_environment_and_a_strategy_needs_an_agent(use: UserCode) -> None:
    with pytest.raises(Usage, match="an agent and an environment"):
        read_recipe('agent = "my_agent:agent"\nenvironment = "coin_flip"\nmethod = "grpo"', (), use)
    with pytest.raises(InvalidValue, match="deadline"):
        gw.Agent(file="a:b", deadline=0)
    checked = check('[method]\nbase = "grpo"\nstrategy = "AgentEpisodes"')
    assert any("needs an agent" in str(error) for error in checked.errors)


def test_check_runs_the_agent_once_on_a_made_up_policy(tmp_path: Path) -> None:
    """An error without any judge; a note if the agent fails, which may be due to the made-up answer."""
    calls: list[str] = []

    async def silent(row: Any, client: Client) -> None:
        calls.append(await client.say(f"{row['a']}+1="))

    async def fails(row: Any, client: Client) -> float:
        return float(await client.say(f"{row['a']}+1=")) / 0

    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    source = f'model = "calculator"\ntask = "{path}"\nmethod = "grpo"\nagent = "it"'
    checked = check(source, (), UserCode(functions_in_memory={"it": silent}))
    assert len(calls) == 1 and any("returns no reward" in str(error) for error in checked.errors)
    checked = check(
        source + '\nverifier = "exact"\n[columns]\nanswer = "a"', (), UserCode(functions_in_memory={"it": silent})
    )
    assert len(calls) == 2 and not checked.errors
    checked = check(source, (), UserCode(functions_in_memory={"it": fails}))
    assert not checked.errors and any("on a made-up answer, the agent: test_agents.py:" in n for n in checked.notes)


def test_check_refuses_a_request_that_no_run_can_answer(tmp_path: Path) -> None:
    """With the line to write. An agent that sends another request instead has no error."""

    def asks_with(**fields: Any) -> Any:
        async def agent(row: Any, client: Client) -> float:
            await client.say("1+1=", **fields)
            return 1.0

        return agent

    async def copes(row: Any, client: Client) -> float:
        with pytest.raises(AssertionError, match="a plain template"):
            await client.say("1+1=", messages=system)
        return float("x" + await client.say("1+1="))

    system = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}]
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    source = f'model = "calculator"\ntask = "{path}"\nmethod = "grpo"\nagent = "it"'
    for agent, what, fix in (
        (asks_with(messages=system), "a plain template formats a single text", "use --template chat"),
        (asks_with(messages=system[:1]), "no place for a message of the role system", "use --template chat"),
        (asks_with(tools=[tool]), "a plain template has no place for tools", "use --template chat"),
        (asks_with(seed=3), "seed = 3 is not supported", "leave it out"),
        (asks_with(model="gpt-4o"), "the model 'gpt-4o' does not exist", "agent.model_names"),
    ):
        (error,) = check(source, (), UserCode(functions_in_memory={"it": agent})).errors
        assert what in str(error) and fix in str(error) and "test_agents.py:" in str(error)
    checked = check(source, (), UserCode(functions_in_memory={"it": copes}))
    assert not checked.errors and any("on a made-up answer, the agent: test_agents.py:" in n for n in checked.notes)


def test_check_refuses_an_agent_that_blocks_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_agent, "MOST_SECONDS", 0.01)
    monkeypatch.setattr(check_agent, "GRACE", 0.05)
    free = threading.Event()

    async def blocks(row: Any, client: Client) -> float:
        free.wait(5)
        return 1.0

    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    source = f'model = "calculator"\ntask = "{path}"\nmethod = "grpo"\nagent = "it"'
    (error,) = check(source, (), UserCode(functions_in_memory={"it": blocks})).errors
    free.set()
    assert "the agent blocks the event loop" in str(error) and "write def in place of async def" in str(error)


# One reward, several samples


def sample(stream: tuple[int, ...], reward: float, tokens: int, role: str = "answer") -> Sample:
    verdict = Verdict(Outcome.scored, reward)
    start = Sample(context=(1,), stream=stream, limit=9, role=role)
    return start.with_tokens((5,) * tokens, (0,) * tokens, (-1.0,) * tokens).with_verdict(verdict)


def episodes() -> Rollout:
    """Two episodes: the first has two further conversations."""
    answers = (sample((0,), 1.0, 2), sample((1,), 0.0, 4))
    threads = (sample((0, 77, 0), 1.0, 3, THREAD), sample((0, 78, 0), 1.0, 1, THREAD))
    return Rollout(Draw(3, Prompt("p", (1,)), 2), (*answers, *threads))


def test_an_advantage_is_of_an_episode(method: Method = grpo(group_size=2)) -> None:  # noqa: B008
    """Answers are compared with each other; the other conversations of an episode follow, and change no statistic."""
    both = ("answer", THREAD)
    batch = compute_advantages(pack([episodes()], roles=both), replace(method, trained_roles=both))
    alone = compute_advantages(pack([episodes()]), method)
    first, second = alone.advantage[0], alone.advantage[-1]
    assert first == -second and first > 0
    assert batch.advantage.tolist() == [first] * 2 + [second] * 4 + [first] * 4
    assert batch.reward.tolist() == [1.0, 0.0, 1.0, 1.0] and batch.episodes.index.tolist() == [0, 1, 0, 0]


def test_a_conversation_whose_answer_is_dropped_is_compared_in_its_place() -> None:
    """A filter of samples may drop the answer of an episode and keep its other conversations."""
    rollout, both = episodes(), ("answer", THREAD)
    batch = pack([replace(rollout, selected=(False, True, True, True))], roles=both)
    whole = compute_advantages(pack([rollout], roles=both), grpo(group_size=2))
    part = compute_advantages(batch, grpo(group_size=2))
    assert [s.role for s in batch.samples] == ["answer", THREAD, THREAD]
    assert part.advantage.tolist() == whole.advantage.tolist()[2:] and part.reward.tolist() == [0.0, 1.0, 1.0]


def test_gigpo_compares_the_turns_of_an_agent_after_equal_messages() -> None:
    """A first turn is compared with those of conversations with the same prompt, also of other roles."""
    first, second = sample((0,), 1.0, 2), sample((1,), 0.0, 1)
    threads = (sample((0, 7, 0), 1.0, 1, THREAD), sample((1, 7, 0), 0.0, 1, THREAD), sample((1, 8, 0), 0.0, 1, THREAD))
    helpers = tuple(replace(thread, context=(2,)) for thread in threads[:2])
    rollout = Rollout(Draw(3, Prompt("p", (1,)), 2), (first, second, *helpers, replace(threads[2], context=(3,))))
    method = replace(gigpo(group_size=2, right=1.0, divide=False), trained_roles=("answer", THREAD), advantage=())
    batch = compute_advantages(pack([rollout], roles=method.trained_roles), method)
    x = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    z = [0.5, 0.5, -0.5, 0.5, -0.5, 0.0]
    assert batch.advantage.tolist() == pytest.approx([a + b for a, b in zip(x, z, strict=True)])


def test_a_method_of_conversations_trains_an_agent(use: UserCode) -> None:
    recipe = read_recipe('agent = "my_agent:agent"\nmethod = "gigpo"', (), use)
    assert recipe.method.strategy == AgentEpisodes() and recipe.method.credit == gigpo().credit
    assert not check('agent = "my_agent:agent"\nmethod = "gigpo"', (), use).errors


def test_episode_mean_weighs_episodes_equally() -> None:
    batch = compute_advantages(pack([episodes()], roles=("answer", THREAD)), dr_grpo(group_size=2))
    share = episode_mean(batch)
    expected = (
        [1 / 6 / 2] * 2 + [1 / 4 / 2] * 4 + [1 / 6 / 2] * 4
    )  # six tokens in the first episode, four in the second
    torch.testing.assert_close(share, torch.tensor(expected, dtype=share.dtype), rtol=0, atol=1e-15)
    plain = compute_advantages(pack([episodes()]), dr_grpo(group_size=2))
    assert episode_mean(plain).tolist() == sequence_mean(plain).tolist()
