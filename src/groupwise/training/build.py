"""Where a run computes: the engine and the learner that a recipe asks for, in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.config.user_code import Use
from groupwise.data import Engine, MissingRequirement, Prompt, Rollout, Sampling, Task, Usage, Verifier, gap_bound
from groupwise.evaluation.evaluate import scores
from groupwise.learner import Learner, check_routing, mixture
from groupwise.models import (
    Model,
    Purpose,
    Tokenizer,
    attach,
    base_name,
    find_model,
    fingerprint,
    has_adapter,
    read_model,
    read_tokenizer,
    write_adapter,
    write_model,
)
from groupwise.rollout import Buffer, answers
from groupwise.tasks import Demonstration, SourceStats
from groupwise.training.environments import environment_of, frame_of
from groupwise.training.guards import Guards
from groupwise.training.sources import demonstrations_of, task_of, verdict_wait, verifier_of

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Runtime:
    """What a run is made of, ready to go."""

    model: Model
    tokenizer: Tokenizer
    task: Task
    verifier: Verifier
    engine: Engine
    buffer: Buffer
    guards: Guards
    recipe: Recipe

    @cached_property
    def learner(self) -> Learner:
        """Made when it is first asked for, by what trains: the weights as they then stand are where the run begins."""
        method = self.recipe.method
        return Learner(
            self.model,
            optimizer=self.recipe.optimizer,
            steps=self.recipe.iterations * method.minibatches * method.epochs,
            temperature=self.recipe.sampling.temperature,
            side_models=method.models_in_use,
            memory=method.memory,
        )

    @cached_property
    def demonstrations(self) -> tuple[list[Demonstration], tuple[SourceStats, ...]]:
        """What the warm start teaches, and what is known of it; nothing where there is none."""
        return demonstrations_of(self.recipe, self.tokenizer)

    @cached_property
    def adapter(self) -> dict[str, str]:
        """What a run remembers of its adapter: its size, and the hash of the weights that it stands beside."""
        if not has_adapter(self.model):
            return {}
        size = {
            wanted: sum(w.numel() for w in self.model.parameters() if w.requires_grad == wanted)
            for wanted in (True, False)
        }
        told = f"{size[True]:,} trained weights beside {size[False]:,} frozen ones"
        return {"adapter": told, "base_sha256": fingerprint(find_model(self.recipe.model))}

    def write(self, path: Path) -> None:
        """The model as it stands: a plain directory, or the adapter as peft writes it."""
        if has_adapter(self.model):
            base = base_name(self.recipe.model)
            write_adapter(self.model, path, base=base, base_sha256=self.adapter["base_sha256"])
        else:
            write_model(self.model, path, tokenizer=self.tokenizer)

    async def evaluate(self) -> dict[str, float]:
        """The held-out numbers of a line of metrics."""
        return scores(*await self.answer())

    async def answer(self, law: Sampling | None = None) -> tuple[list[Rollout], list[Rollout]]:
        """The held-out problems answered: each once greedily, and `samples` times at the training law or another."""
        wanted, law = self.recipe.evaluate, law or self.recipe.sampling
        return await self.ask(1, replace(law, temperature=0.0)), await self.ask(wanted.samples, law)

    @property
    def asked(self) -> Sequence[Prompt]:
        """The held-out problems that an evaluation asks."""
        return self.task.held_out[: self.recipe.evaluate.problems]

    async def ask(self, n: int, sampling: Sampling) -> list[Rollout]:
        """`n` answers to each of the asked problems."""
        return await answers(
            self.asked,
            n,
            self.engine,
            self.verifier,
            sampling,
            self.tokenizer,
            seed=self.recipe.seed,
            purpose=Purpose.EVALUATE,
            strategy=self.recipe.evaluate.strategy,
            deadline=self.recipe.machine.deadline,
            verdict_deadline=verdict_wait(self.recipe, self.verifier),
            environment=self.buffer.environment,
            replay=self.buffer.replay,
            frame=self.buffer.frame,
        )


def prepare(machine: Machine) -> torch.device:
    """Threads and device of this process, as the recipe says."""
    torch.set_num_threads(machine.threads)
    if machine.device.partition(":")[0] not in ("cpu", "cuda"):
        raise Usage(f"no device is called {machine.device!r}", fix="say cpu or cuda")
    try:
        device = torch.device(machine.device)
    except RuntimeError as error:
        raise Usage(
            f"{machine.device!r} is no device", evidence=str(error).partition("\n")[0], fix="say cpu or cuda"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise MissingRequirement(
            "there is no such CUDA device here" if count else "there is no CUDA device here",
            evidence=f"machine.device = {machine.device!r}, devices {count}",
            fix=f"say a number below {count}, such as --machine.device cuda:0" if count else "say --machine.device cpu",
        )
    if machine.compile:
        check_compiler(device)
    return device


def check_compiler(device: torch.device) -> None:
    """`Environment` where no kernel can be built for the device."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(16, device=device))
    except RuntimeError as error:  # which all of the compiler's are
        raise MissingRequirement(
            f"nothing can be compiled for {device} here",
            evidence=str(error).partition("\n")[0],
            fix="install a C++ compiler, such as g++ (for CUDA triton too), or leave --machine.compile out",
        ) from None


def build(recipe: Recipe, use: Use, built: tuple[Task, Verifier] | None = None) -> Runtime:
    """Engine, learner and what they need, over one set of weights. Task and verifier may be `built` already."""
    device = prepare(recipe.machine)
    directory = find_model(recipe.model)
    tokenizer = read_tokenizer(directory)
    dtype, trusted = DTYPES[recipe.machine.dtype], use.trust_remote_code
    model = read_model(directory, dtype=dtype, device=device, seed=recipe.seed, trust_remote_code=trusted)
    if recipe.lora is not None:
        attach(model, recipe.lora, seed=recipe.seed)
    check_routing(recipe.method.routing, mixture(model))
    model.recompute, model.compiled = recipe.machine.recompute, recipe.machine.compile
    if built is None:
        task = task_of(recipe, tokenizer)
        built = task, verifier_of(recipe, task, use)
    task, verifier = built
    method = recipe.method
    experts = mixture(model) if method.routing.replay == "engine" else None
    engine = recipe.engine.build(model, tokenizer, seed=recipe.seed, experts=experts)
    buffer = Buffer(
        task,
        method.curriculum,
        engine,
        verifier,
        tokenizer,
        sampling=recipe.sampling,
        seed=recipe.seed,
        unverifiable=method.unverifiable,
        deadline=recipe.machine.deadline,
        verdict_deadline=verdict_wait(recipe, verifier),
        environment=environment_of(recipe, use),
        frame=frame_of(recipe, tokenizer),
    )
    gap = gap_bound(recipe.engine.max_gap, recipe.machine.dtype)
    guards = Guards(max_unverifiable=recipe.max_unverifiable, max_gap=gap)
    return Runtime(model, tokenizer, task, verifier, engine, buffer, guards, recipe)
