"""A toy task of 17 tokens: an answer is correct if it begins with the prompt's letter. It is learned in seconds."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from groupwise.config.recipe import Cluster, Evaluate, Recipe, Save
from groupwise.data import Engine, Outcome, Prompt, Sample, Sampling, Subscore, TokenMark, Verdict
from groupwise.engines import NativeEngine
from groupwise.learner import AdamW, Learner
from groupwise.methods import Method, dapo, published
from groupwise.models import Decoder, DecoderShape, Tokenizer
from groupwise.rollout import Independent, RolloutBuffer, RolloutSetting, Shuffled
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs
from groupwise.training.loop import run
from groupwise.training.run_guards import RunGuards
from groupwise.training.run_recorder import RunRecorder
from tests.faults.small_runs import Quick
from tests.rollout.fakes import judged_by

LETTERS = "abcdefghijklmno"
SHAPE = DecoderShape(
    vocabulary_size=17,
    hidden_size=16,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp_width=24,
    qk_norm=True,
    tied_embeddings=True,
    max_positions=16,
)


def fits_the_task(method: Method) -> bool:
    """Whether a method needs only prompts and verdicts: no hints, no turns and no subscores of verdicts."""
    if method.strategy != Independent() or method.curriculum != Shuffled():
        return False
    return method.trained_roles == ("answer",) and not any(isinstance(m, Subscore | TokenMark) for m in method.needs)


NAMES = [method.__name__ for method in published if fits_the_task(method())]
"""The methods that this task can train. Those with other needs have their toys beside their strategies."""
LEARNERS = (
    "grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "cispo", "gmpo", "sapo", "rloo", "reinforce_pp", "reinforce",
)  # fmt: skip
"""Methods whose learning is tested in the suite. `test_every_method_runs.py` trains all of them for two steps."""


def tokenizer() -> Tokenizer:
    """Pad, end, and fifteen letters."""
    fast = Fast(models.WordLevel({t: i for i, t in enumerate(("<pad>", "<end>", *LETTERS))}, unk_token=""))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<pad>", "<end>")])
    return Tokenizer.of(fast, (1,))


@dataclass(frozen=True)
class Echo:
    """Prompts of one letter each."""

    letters: int = 4

    def __len__(self) -> int:
        return self.letters

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(
            LETTERS[index],
            (2 + index,),
            LETTERS[index],
            {"answer": LETTERS[index], "solution": LETTERS[index], "hints": ["b", "c"]},
        )

    @property
    def held_out(self) -> tuple[Prompt, ...]:
        return ()


async def echoed(prompt: Prompt, sample: Sample) -> Verdict:
    """Correct if the first token is the prompt's."""
    return Verdict(Outcome.correct if sample.tokens[0] == prompt.token_ids[0] else Outcome.wrong)


def small(name: str, **sizes: Any) -> Method:
    """A published method with small sizes; its other settings stay those of the paper."""
    publish = next(m for m in published if m.__name__ == name)
    method = dapo(buffer_length=1) if publish is dapo else publish()
    return replace(method, **{"group_size": 8 if method.group_size > 1 else 1, "minibatches": 1} | sizes)


@dataclass
class ToyRun:
    """A run of a tiny decoder in its own directory."""

    method: Method
    directory: Path
    prompts: int = 4
    iterations: int = 2
    seed: int = 0
    lr: float = 0.03
    temperature: float = 1.0
    max_tokens: int = 2
    letters: int = 4
    dtype: torch.dtype = torch.float32
    spread: float = 0.3
    max_logprob_diff: float = 1e-4
    save: int = 0
    max_staleness: int = 0
    verifier: Callable[[Prompt, Sample], Awaitable[Verdict]] = echoed
    engine: Engine | None = None
    policy: torch.nn.Module | None = None
    """The model to train, with an engine for it; a tiny decoder by default."""
    disk: Quick = field(default_factory=Quick)
    warnings: list[str] = field(default_factory=list)
    learner: Learner = field(init=False)
    buffer: RolloutBuffer = field(init=False)
    recipe: Recipe = field(init=False)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.recipe = Recipe(
            method=self.method,
            prompts=self.prompts,
            iterations=self.iterations,
            seed=self.seed,
            sampling=Sampling(max_tokens=self.max_tokens, temperature=self.temperature),
            optimizer=AdamW(lr=self.lr),
            evaluate=Evaluate(every=0),
            save=Save(every=self.save),
            cluster=Cluster(max_staleness=self.max_staleness),
        )
        model = self.policy or Decoder.new(SHAPE, 5, dtype=self.dtype, spread=self.spread)
        vocabulary = tokenizer()
        self.learner = Learner(
            model,
            optimizer=self.recipe.optimizer,
            steps=self.iterations * self.method.minibatches * self.method.epochs,
            temperature=self.temperature,
            side_models=self.method.models,
            states=self.method.states,
        )
        if self.engine is None:
            assert isinstance(model, Decoder), "another policy needs another engine"
            self.engine = NativeEngine(deepcopy(model) if self.max_staleness else model, vocabulary, seed=self.seed)
        setting = RolloutSetting(
            engine=self.engine, verifier=judged_by(self.verifier), tokenizer=vocabulary, sampling=self.recipe.sampling,
            seed=self.seed,
        )  # fmt: skip
        rules = {"unverifiable_rule": self.method.unverifiable, "trained_roles": self.method.trained_roles}
        self.buffer = RolloutBuffer(Echo(self.letters), self.method.curriculum, setting, **rules)
        self.guards = RunGuards(max_unverifiable=0.1, max_logprob_diff=self.max_logprob_diff)

    def go(self, evaluate: Callable[[], Awaitable[dict[str, float]]] | None = None) -> list[dict[str, Any]]:
        """Run it from its checkpoint, if there is one, and return the lines of metrics.jsonl."""

        async def nothing() -> dict[str, float]:
            return {}

        self.directory.mkdir(parents=True, exist_ok=True)
        checkpoint = newest_checkpoint(RunLayout(self.directory))
        logs = RunLogs(RunLayout(self.directory), disk=self.disk)
        if checkpoint is not None:
            logs = RunLogs.resume(RunLayout(self.directory), checkpoint.state, checkpoint.iteration, disk=self.disk)
        self.recorder = RunRecorder(
            RunLayout(self.directory), logs, keep=1, notify=self.warnings.append, disk=self.disk
        )
        if checkpoint is not None:
            self.recorder.restore(checkpoint, self.learner, self.buffer, self.guards)
        assert self.engine is not None
        asyncio.run(
            run(self.recipe, self.buffer, self.engine, self.learner, self.recorder, self.guards, evaluate or nothing)
        )
        logs.close()
        return read_lines(self.directory / "metrics.jsonl")

    def samples(self, iteration: int) -> list[dict[str, Any]]:
        return read_lines(self.directory / "samples" / f"{iteration:06d}.jsonl")

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: x.clone() for name, x in self.learner.weights().items()}


def rate(lines: list[dict[str, Any]]) -> float:
    """The share of correct answers over some iterations."""
    shares = [line["outcome/correct"] for line in lines if "outcome/correct" in line]
    return math.fsum(shares) / max(1, len(shares))
