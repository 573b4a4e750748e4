"""Runs an agent: opens an episode, calls the user's function, and turns its result into a verdict."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.core import describe_error, in_daemon_thread
from groupwise.core.errors import ends_run
from groupwise.data import Draw, Prompt, Sampler, Verdict
from groupwise.data.rollout_json import from_json, to_json
from groupwise.data.verdicts import as_verdict, unverifiable
from groupwise.environments import call_format
from groupwise.models import PromptTemplate
from groupwise.rollout.agents.agent_asyncio_tasks import AgentAsyncioTasks
from groupwise.rollout.agents.chat_request import POLICY
from groupwise.rollout.agents.endpoint import Endpoint
from groupwise.rollout.agents.episode import CallPlan, Episode
from groupwise.rollout.agents.http_server import EndpointServer
from groupwise.rollout.agents.openai_clients import openai_clients, plain_clients
from groupwise.rollout.agents.programs import AgentProgram

__all__ = ["AgentFunction", "AgentRunner"]

AgentFunction = Callable[[Mapping[str, Any], Any], Any]
"""A user's agent: `async def agent(row, client)`, whose client is an `openai.AsyncOpenAI`; or without `async`, then it
runs in a thread and its client is an `openai.OpenAI`. It may return a reward."""


@dataclass(eq=False)
class AgentRunner:
    """Runs the agent of a recipe, one episode at a time or many.

    `training_temperature` is that of training. `deadline` limits an episode, in seconds, and `processes` the plain
    agents or programs that run at a time. `model_names` are names besides `policy` that requests may use for it.
    `warning_callback` gets each note of the episodes once. `output_directory` keeps the output of programs; without one
    it is dropped.
    """

    agent: AgentFunction | AgentProgram
    template: PromptTemplate
    training_temperature: float
    deadline: float = 600.0
    processes: int = 8
    model_names: Sequence[str] = ()
    warning_callback: Callable[[str], object] = lambda line: None
    output_directory: Path | None = None
    _notes: set[str] = field(default_factory=set, init=False)

    @cached_property
    def endpoint(self) -> Endpoint:
        """The endpoint of all episodes."""
        return Endpoint((POLICY, *self.model_names))

    @cached_property
    def server(self) -> EndpointServer:
        """The endpoint's server, for agents that do not run in the event loop."""
        return EndpointServer(self.endpoint)

    @cached_property
    def client(self) -> Callable[[str], Any]:
        """The client of an async agent's episode, by its key."""
        return openai_clients(self.endpoint)

    @cached_property
    def plain_client(self) -> Callable[[str, str], Any]:
        """The client of a plain agent's episode, by the base URL and the key."""
        return plain_clients()

    @cached_property
    def places(self) -> asyncio.Semaphore:
        """The free places of agents that do not run in the event loop."""
        return asyncio.Semaphore(self.processes)

    async def run(
        self, sampler: Sampler, draw: Draw, number: int, *, name: str = "trial"
    ) -> tuple[Episode, Verdict | None]:
        """Run the agent once. Returns the episode, and the verdict; None leaves it to the verifier.

        `name` is that of the files with a program's output. An agent that raises or takes too long is unverifiable.
        Raises an error that ends the run, such as a lost engine: it is not the agent's fault.
        """
        episode = self._episode(sampler, draw, number)
        async with self.endpoint.open(episode) as (key, opened):
            agent = asyncio.ensure_future(self._called(draw.prompt, key, name))
            try:
                await asyncio.wait({agent, opened.fatal_error}, return_when=asyncio.FIRST_COMPLETED)
                if opened.fatal_error.done():
                    opened.fatal_error.result()
                return episode, agent.result()
            finally:
                agent.cancel()
                await asyncio.gather(agent, return_exceptions=True)

    async def replayed(
        self, record: str, sampler: Sampler, draw: Draw, number: int
    ) -> tuple[Episode, Verdict | None] | None:
        """An episode that ended before the run was killed, from its record: its calls are generated again, the agent
        does not run. None if an answer differs: then the weights do, too.
        """
        episode = self._episode(sampler, draw, number)
        data = json.loads(record)
        for name, (plan, digest) in data["calls"].items():
            answer = await episode.generate(int(name), from_json(CallPlan, plan))
            if _digest(answer.tokens) != digest:
                return None
        return episode, None if data["verdict"] is None else from_json(Verdict, data["verdict"])

    def _episode(self, sampler: Sampler, draw: Draw, number: int) -> Episode:
        format = call_format(self.template.template_source)
        return Episode(sampler, draw, number, self.template, format, self.training_temperature, self._notify_once)

    async def _called(self, prompt: Prompt, key: str, name: str) -> Verdict | None:
        """Call the agent: its reward as a verdict, None without one."""
        row, agent = {"prompt": prompt.text, **prompt.row}, self.agent
        if not isinstance(agent, AgentProgram) and is_async(agent):
            client = self.client(key)
            async with AgentAsyncioTasks() as tasks:
                return await self._within_deadline(lambda: tasks.run(lambda: agent(row, client)))
        async with self.places, self.server.open() as url:
            if isinstance(agent, AgentProgram):
                return await self._within_deadline(lambda: agent.run(row, url, key, name, self.output_directory))
            client = self.plain_client(url, key)
            return await self._within_deadline(lambda: in_daemon_thread(agent, row, client))

    async def _within_deadline(self, call: Callable[[], Any]) -> Verdict | None:
        """The reward of a call as a verdict, None without one. A call that raises or is late is unverifiable."""
        limit = asyncio.timeout(self.deadline)
        try:
            async with limit:
                reward = await call()
        except Exception as error:
            if ends_run(error):
                raise
            late = isinstance(error, TimeoutError) and limit.expired()
            cause = f"it did not end within {self.deadline:g} seconds" if late else describe_error(error)
            return unverifiable(f"the agent: {cause}")
        return None if reward is None else as_verdict(reward)

    def _notify_once(self, line: str) -> None:
        if line not in self._notes:
            self._notes.add(line)
            self.warning_callback(line)


def is_async(agent: Any) -> bool:
    """Whether an agent is an async function, or an object whose call is one."""
    called = agent if inspect.isroutine(agent) else getattr(agent, "__call__", agent)  # noqa: B004
    return inspect.iscoroutinefunction(called)


def record_of(episode: Episode, verdict: Verdict | None) -> str:
    """An episode that has ended, for the replay log: its calls with a digest of each answer, and the verdict."""
    calls = {number: [to_json(one.plan), _digest(one.tokens)] for number, one in sorted(episode.answered_calls.items())}
    return json.dumps({"calls": calls, "verdict": None if verdict is None else to_json(verdict)})


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:32]
