"""Builds the model, engine, buffer and learner of a recipe in this process."""

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from groupwise.cluster.network_interface import use_interface_towards
from groupwise.cluster.ray_replicas import RayReplicaLauncher
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.resolve_devices import device_label, device_of, find_device, resolved
from groupwise.config.user_code import UserCode
from groupwise.core import MissingRequirement, Usage
from groupwise.data import (
    Engine,
    EnvironmentReplyLog,
    Prompt,
    Rollout,
    Sampling,
    Task,
    Verifier,
    all_problems,
    gap_bound,
    notices_of,
)
from groupwise.engines.no_engine import NoEngine
from groupwise.engines.remote.engine_access import EngineAccess
from groupwise.engines.remote.replica_devices import gpu_index, gpu_indices
from groupwise.engines.remote.served_settings import EngineRequirements, Served
from groupwise.evaluation.accuracy import scores
from groupwise.evaluation.by_column import scores_by
from groupwise.learner import FromDirectory, Learner, Ranks, SingleProcess, check_routing, mixture
from groupwise.models import (
    KINDS,
    Decoder,
    DecoderShape,
    LayerWeights,
    MixtureOfExpertsSizes,
    Model,
    SequenceClassifier,
    Tokenizer,
    VisionModel,
    attach,
    base_name,
    find_model,
    fingerprint,
    frozen_weights,
    has_adapter,
    is_quantized,
    outline_on_disk,
    padding_token,
    read_model,
    read_tokenizer,
    weights_device,
    write_adapter,
    write_model,
)
from groupwise.planning.engine_share import with_engine_share
from groupwise.planning.process_memory import gathers_layers
from groupwise.rollout import RolloutBuffer, RolloutSetting, answers
from groupwise.runs.phase_directories import phase_directories
from groupwise.training.build_agent_runner import agent_of, draw_deadline
from groupwise.training.build_environment import environment_of, frame_of, tool_schemas
from groupwise.training.build_tasks import (
    Templates,
    demonstrations_of,
    prompt_template,
    task_of,
    templates,
    verdict_wait,
    verifier_of,
)
from groupwise.training.progress_output import notify
from groupwise.training.run_guards import RunGuards
from groupwise.training.stored_answer_evaluation import held_out_metrics, with_iterations
from groupwise.training.strategy_default_texts import with_wording
from groupwise.training.warm_start import warm_start_phase
from groupwise.verifiers.no_verifier import NoVerifier

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class RunInputs:
    """The inputs of a run. `demonstrations` is the task of its warm start, None if there is none or it was not read."""

    tokenizer: Tokenizer
    templates: Templates
    task: Task
    verifier: Verifier
    demonstrations: Task | None = None


def read_inputs(recipe: Recipe, use: UserCode) -> RunInputs:
    """Read tokenizer, templates and task, and build the verifier."""
    tokenizer = read_tokenizer(find_model(recipe.model))
    by_name = templates(recipe, tokenizer, tool_schemas(recipe, use))
    task = task_of(recipe, by_name)
    return RunInputs(tokenizer, by_name, task, verifier_of(recipe, task, use))


@dataclass(frozen=True, eq=False)
class RunObjects:
    """The objects of a run or an evaluation, over one set of weights, assembled once by `build`.

    What changes from iteration to iteration is created from them for each process: buffer, guards and learner.
    """

    model: Model
    inputs: RunInputs
    engine: Engine
    rollout_setting: RolloutSetting
    recipe: Recipe
    user_code: UserCode

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inputs.tokenizer

    @property
    def task(self) -> Task:
        return self.inputs.task

    @property
    def verifier(self) -> Verifier:
        return self.inputs.verifier

    @property
    def notices(self) -> Sequence[str]:
        """Lines that name the addresses to which engine and verifier send prompts, answers and weights."""
        return (*notices_of(self.recipe.engine), *self.verifier.notices)

    def new_buffer(self, replay: EnvironmentReplyLog | None = None) -> RolloutBuffer:
        """The buffer at the first prompt. `replay` records the observations of environments."""
        method, setting = self.recipe.method, replace(self.rollout_setting, environment_reply_log=replay)
        return RolloutBuffer(
            self.task,
            method.curriculum,
            setting,
            unverifiable_rule=method.unverifiable,
            trained_roles=method.trained_roles,
        )

    def new_guards(self) -> RunGuards:
        """The guards before the first iteration."""
        gap = gap_bound(self.recipe.engine.max_logprob_diff, self.recipe.machine.dtype)
        return RunGuards(max_unverifiable=self.recipe.max_unverifiable, max_logprob_diff=gap)

    def new_learner(self, ranks: Ranks | None = None) -> Learner:
        """The learner. Models such as `InitialPolicy` copy the present weights: call it after the warm start."""
        return new_learner(
            self.model, self.recipe, ranks or SingleProcess(self.recipe.cluster.reduction_lanes), self.tokenizer
        )

    @property
    def device(self) -> str:
        """The device of the weights, as run.json names it."""
        return device_label(weights_device(self.model))

    @cached_property
    def warm_start(self) -> "RunObjects | None":
        """The objects of the phase before the first iteration, over the same model; None without a warm start."""
        if (phase := warm_start_phase(self.recipe)) is None:
            return None
        templates = self.inputs.templates
        task = self.inputs.demonstrations or demonstrations_of(self.recipe, templates)
        assert task is not None, "the recipe has a warm start"
        inputs = RunInputs(self.tokenizer, {phase.template: templates[phase.template]}, task, NoVerifier())
        return objects_over(self.model, NoEngine(), inputs, phase, self.user_code)

    @cached_property
    def adapter(self) -> dict[str, str]:
        """The fields of run.json about a LoRA adapter: its size and the hash of its base weights."""
        if not has_adapter(self.model):
            return {}
        trained = sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)
        text = f"{trained:,} trained weights, {frozen_weights(self.model):,} frozen weights"
        text += ", in 4 bits but for embedding, head and norms" if is_quantized(self.model) else ""
        return {"adapter": text, "base_sha256": fingerprint(find_model(self.recipe.model))}

    @property
    def has_weights(self) -> bool:
        """Whether this process has a whole model. Rank 0 of shards has none if no engine samples from it."""
        return not next(self.model.parameters()).is_meta

    def write(self, path: Path, weights: LayerWeights | None = None) -> None:
        """Write the current model: a model directory, or the adapter in peft's format with its tokenizer.

        `weights` are those of a model that this process has not.
        """
        base_sha256 = self.adapter.get("base_sha256", "")
        write_trained(self.model, path, self.recipe, self.tokenizer, base_sha256, weights)

    async def evaluate(self, setting: RolloutSetting, learner: Learner | None = None) -> dict[str, float]:
        """The metrics of the held-out problems, from greedy answers and from answers sampled as in training.

        For a method of stored answers they begin with those of the learner on the answers that the rows store.
        """
        stored: dict[str, float] = {}
        if self.recipe.trains_stored_answers and learner is not None:
            stored = await held_out_metrics(self.recipe, learner, self.held_out, setting)
        return stored if isinstance(self.verifier, NoVerifier) else stored | await self.graded(setting)

    async def graded(self, setting: RolloutSetting) -> dict[str, float]:
        """The metrics of generated answers to the held-out problems."""
        sampling = self.recipe.sampling
        greedy = await self.answers(setting, 1, replace(sampling, temperature=0.0))
        sampled = await self.answers(setting, self.recipe.evaluate.samples, sampling)
        return scores(greedy, sampled) | scores_by(sampled, self.recipe.evaluate.by_column)

    @property
    def held_out(self) -> Sequence[Prompt]:
        """The first `evaluate.problems` held-out problems, which an evaluation uses."""
        return self.task.held_out[: self.recipe.evaluate.problems]

    async def answers(self, setting: RolloutSetting, n: int, sampling: Sampling) -> list[Rollout]:
        """Generate and verify `n` answers to each held-out problem."""
        evaluate = self.recipe.evaluate
        setting = replace(setting, verifier=self.verifier, sampling=sampling, denoising_steps=evaluate.denoising_steps)
        return await answers(self.held_out, n, setting, strategy=evaluate.strategy)


def read_policy(recipe: Recipe, use: UserCode, device: torch.device) -> Model:
    """The model of a resolved recipe, with its adapter. `Usage` if the method needs experts that it lacks."""
    directory = find_model(recipe.model)
    model = read_stored(directory, recipe, use, device)
    if isinstance(model, Decoder) and recipe.cluster.sharded and (outlined := stored_outline(recipe)):
        model.on_disk = outlined.on_disk
    model = as_trained(model, recipe)
    check_routing(recipe.method.router_replay, recipe.method.auxiliary, mixture(model))
    model.recompute, model.compiled = recipe.machine.gradient_checkpointing, recipe.machine.compile
    return model


def as_trained(model: Model, recipe: Recipe) -> Model:
    """The model in the recipe's directory with the modules that the recipe adds: the score of a reward model, LoRA."""
    if recipe.trains_reward_model:
        model = with_score_head(model, find_model(recipe.model))
    if recipe.lora is not None:
        attach(model, recipe.lora, seed=recipe.seed)
    return model


def with_score_head(model: Model, directory: Path) -> SequenceClassifier:
    """The model with a score in place of its logits; a reward model keeps its own. `Usage` for other modules."""
    if isinstance(model, SequenceClassifier):
        return model
    if not isinstance(model, Decoder):
        what = f"a reward model cannot be trained on {directory}: its layers are not those of this package's decoder"
        raise Usage(what, evidence=type(model).__name__, fix="use a Qwen2, Qwen3, Llama or Mistral model")
    return SequenceClassifier.on(model, padding_token(directory))


def read_stored(directory: Path, recipe: Recipe, use: UserCode, device: torch.device) -> Model:
    """The model in a directory, as a resolved recipe reads it."""
    dtype, trusted = DTYPES[recipe.machine.dtype], use.trust_remote_code
    model = read_model(
        directory,
        dtype=dtype,
        device=device,
        seed=recipe.seed,
        trust_remote_code=trusted,
        quantization=recipe.machine.quantization,
    )
    return with_settings(model, recipe)


def with_settings(model: Model, recipe: Recipe) -> Model:
    """The model with the recipe's settings for its kind: steps, and a pipeline's guidance and size of pictures."""
    method = recipe.method
    settings = {"denoise": method.denoise, "unmask": method.unmask, "pipeline": recipe.pipeline}
    settings |= {"freeze_vision_tower": recipe.freeze_vision_tower}
    KINDS[model.shape.kind_name].set_up(model, settings)
    return model


def policy_outline(recipe: Recipe) -> Model | None:
    """The model of a resolved recipe without its weights, with its adapter; None if only `read_policy` creates it."""
    if (outlined := stored_outline(recipe)) is None:
        return None
    model = as_trained(outlined, recipe)
    check_routing(recipe.method.router_replay, recipe.method.auxiliary, mixture(model))
    model.recompute = recipe.machine.gradient_checkpointing
    return model


def rows_alone(recipe: Recipe) -> Model | None:
    """The model of rank 0 without its weights, if no engine of its process samples from them; else None.

    Its rank reads its rows, as the others do.
    """
    if not (recipe.cluster.sharded and gathers_layers(recipe, recipe.cluster.ranks)):
        return None
    model = policy_outline(recipe)
    return model if isinstance(model, Decoder) and model.on_disk is not None else None


def stored_outline(recipe: Recipe) -> Decoder | None:
    """The decoder in the recipe's directory without its weights, of which sharded ranks read their rows from its files.

    Without shards, and after a warm start, whose weights rank 0 has, they read none. None for another model.
    """
    outlined = outline_on_disk(
        find_model(recipe.model), dtype=DTYPES[recipe.machine.dtype], device=find_device(recipe.machine)
    )
    if outlined is not None and (not recipe.cluster.sharded or warm_start_phase(recipe) is not None):
        outlined.on_disk = None
    return outlined


def new_learner(model: Model, recipe: Recipe, ranks: Ranks, tokenizer: Tokenizer | None = None) -> Learner:
    """The learner of a recipe over a model. With a `tokenizer`, a side model of another vocabulary is a `Usage`."""
    method = recipe.method
    return Learner(
        model,
        optimizer=recipe.optimizer,
        steps=recipe.iterations * method.minibatches * method.epochs,
        temperature=1.0 if recipe.trains_stored_answers else recipe.sampling.temperature,
        side_models=method.models_in_use,
        from_directories=models_from_directories(model, recipe, ranks, tokenizer),
        states=method.states,
        ranks=ranks,
        optimizer_offload=recipe.machine.optimizer_offload,
    )


def models_from_directories(
    model: Model, recipe: Recipe, ranks: Ranks, tokenizer: Tokenizer | None
) -> dict[str, Model]:
    """The models (reference, teacher) from directories. `Usage` if a vocabulary differs from the policy's.

    Each of sharded ranks reads its rows, so none reads a whole decoder.
    """
    parameter = next(model.parameters())
    device = torch.device("cpu") if ranks.shards else parameter.device  # the policy of such a rank has no weights
    models: dict[str, Model] = {}
    for name, part in recipe.method.models_in_use:
        if isinstance(part, FromDirectory):
            directory = find_model(part.directory)
            if tokenizer is not None:
                check_vocabulary(name, directory, tokenizer)
            side_model = side_model_in(directory, parameter.dtype, device, ranks).requires_grad_(False)
            share_pictures(name, model, side_model)
            models[name] = with_settings(side_model, recipe)
    return models


def side_model_in(directory: Path, dtype: torch.dtype, device: torch.device, ranks: Ranks) -> Model:
    """The side model in a directory. That of sharded ranks has no weights if each reads its rows, or above rank 0."""
    outlined = outline_on_disk(directory, dtype=dtype, device=device) if ranks.shards else None
    if outlined is None or not (outlined.on_disk or ranks.rank):
        return read_model(directory, dtype=dtype, device=device)
    return outlined


def share_pictures(name: str, model: Model, side_model: Model) -> None:
    """Let a side model find the pictures of the policy's prompts. `Usage` if only the policy takes pictures."""
    if not isinstance(model, VisionModel):
        return
    if not isinstance(side_model, VisionModel):
        fix = f"set method.models.{name}.directory to a vision-language model"
        raise Usage(f"the policy takes pictures, and the model {name} in method.models takes none", fix=fix)
    side_model.pictures = model.pictures


def write_trained(
    model: Model,
    path: Path,
    recipe: Recipe,
    tokenizer: Tokenizer,
    base_sha256: str,
    weights: LayerWeights | None = None,
) -> None:
    """Write the trained model: a model directory, or an adapter in peft's format with its tokenizer.

    `base_sha256` is the hash of the weights under an adapter; `weights` are those of a model on the meta device. A
    reward model is a model directory: its adapter is added to its layers, since its head is trained whole.
    """
    if has_adapter(model) and not isinstance(model, SequenceClassifier):
        base = movable_base(base_name(recipe.model), path)
        write_adapter(model, path, base=base, base_sha256=base_sha256, weights=weights)
        tokenizer.save(path)
    else:
        write_model(model, path, tokenizer=tokenizer, source=find_model(recipe.model), weights=weights)


def movable_base(base: str, path: Path) -> str:
    """The name of an adapter's base; within one run of phases, its path relative to the adapter's directory `path`."""
    here = path.resolve()
    whole = next((parent for parent in here.parents if phase_directories(parent)), None)
    return os.path.relpath(base, here) if whole is not None and Path(base).is_relative_to(whole) else base


def check_vocabulary(name: str, directory: Path, tokenizer: Tokenizer) -> None:
    """`Usage` if the tokenizer of a reference or teacher in a directory maps tokens to other ids than the policy's."""
    if read_tokenizer(directory).backend_tokenizer.get_vocab() != tokenizer.backend_tokenizer.get_vocab():
        raise Usage(
            f"the model {name} in method.models and the policy have different vocabularies",
            evidence=f"the tokenizer in {directory} differs",
            fix=f"set method.models.{name}.directory to a model with the policy's tokenizer",
        )


def prepare(machine: Machine) -> torch.device:
    """Set the number of threads and return the device. `Usage` or `MissingRequirement` if it is unusable."""
    torch.set_num_threads(machine.threads)
    device = find_device(machine)
    if machine.compile:
        check_compiler(device)
    return device


def check_compiler(device: torch.device) -> None:
    """`MissingRequirement` if torch cannot compile kernels for the device."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(16, device=device))
    except RuntimeError as error:  # the base of all errors of the compiler
        raise MissingRequirement(
            f"this machine cannot compile for {device}",
            evidence=str(error).partition("\n")[0],
            fix="install a C++ compiler such as g++, and triton for CUDA, or leave out --machine.compile",
        ) from None


def check_engine(recipe: Recipe, model: nn.Module, experts: MixtureOfExpertsSizes | None, access: EngineAccess) -> None:
    """Raise the error of engines in other processes that cannot run a model with a mixture of `experts`.

    The model needs no weights. `access` is what the command line lets the engines use.
    """
    if isinstance(engine := recipe.engine, Served):
        placed = recipe.cluster.launch == "ray" and engine.replicas > 0
        device = device_of(recipe.machine.device)
        target = EngineRequirements(
            dtype=recipe.machine.dtype, device=device, device_from_launcher=placed, ranks=recipe.cluster.ranks,
            gathers_layers=recipe.cluster.sharded and gathers_layers(recipe, recipe.cluster.ranks),
        )  # fmt: skip
        engine.check(model, experts if recipe.method.router_replay == "engine" else None, target, access)


def with_share(recipe: Recipe, model: Model, task: Task) -> Recipe:
    """The recipe with the share of the GPU's memory for an engine on the learner's GPU (`with_engine_share`)."""
    device, engine = weights_device(model), recipe.engine
    if device.type != "cuda" or not isinstance(engine, Served) or not isinstance(shape := model.shape, DecoderShape):
        return recipe
    target = EngineRequirements.of(model, ranks=recipe.cluster.ranks)
    if not any(gpu_index(str(device)) in gpu_indices(name) for name in engine.replica_devices(target)):
        return recipe
    context = max(len(prompt.token_ids) for prompt in all_problems(task))
    return with_engine_share(recipe, shape, context, torch.cuda.get_device_properties(device).total_memory)


def build_engine(recipe: Recipe, model: Model, tokenizer: Tokenizer, access: EngineAccess) -> Engine:
    """The engine of a recipe. Ray starts its replicas if it is the recipe's launcher."""
    engine, experts = recipe.engine, mixture(model) if recipe.method.router_replay == "engine" else None
    if not isinstance(engine, Served):
        return engine.build(model, tokenizer, seed=recipe.seed, experts=experts)
    if recipe.cluster.launch == "ray" and engine.replicas:
        check_engine(recipe, model, mixture(model), access)
        launch = RayReplicaLauncher(recipe, engine.replicas)
        return engine.fleet(model, tokenizer, seed=recipe.seed, experts=experts, access=access, launch=launch)
    if engine.addresses:
        use_interface_towards(access.nccl_hosts)
    ranks = recipe.cluster.ranks
    return engine.build(model, tokenizer, seed=recipe.seed, experts=experts, access=access, ranks=ranks)


def build(recipe: Recipe, use: UserCode, inputs: RunInputs | None = None) -> RunObjects:
    """Build the objects of a run. `inputs` are read unless the caller has them already."""
    recipe = resolved(recipe)
    device = prepare(recipe.machine)
    inputs = inputs or read_inputs(recipe, use)
    recipe = with_wording(recipe, inputs.tokenizer)
    recipe = with_iterations(recipe, inputs.task)
    model = rows_alone(recipe) or read_policy(recipe, use, device)
    # With staleness, the learner changes its own model while the engine samples.
    sampled = deepcopy(model) if recipe.cluster.max_staleness else model
    if isinstance(inputs.verifier, NoVerifier):
        engine = NoEngine()
    else:
        share = with_share(recipe, sampled, inputs.task)
        engine = build_engine(share, sampled, inputs.tokenizer, use.engine_access)
    return objects_over(model, engine, inputs, recipe, use)


def objects_over(model: Model, engine: Engine, inputs: RunInputs, recipe: Recipe, use: UserCode) -> RunObjects:
    """The objects of a resolved recipe over its model and its engine."""
    agent = agent_of(recipe, use, inputs.templates, notify)
    setting = RolloutSetting(
        engine=engine,
        verifier=inputs.verifier,
        tokenizer=inputs.tokenizer,
        sampling=recipe.sampling,
        seed=recipe.seed,
        rollout_deadline=draw_deadline(recipe, agent),
        verdict_deadline=verdict_wait(recipe, inputs.verifier),
        create_environment=environment_of(recipe, use),
        agent_runner=agent,
        observation_frame_ids=frame_of(recipe, inputs.templates),
        encode_prompt=prompt_template(inputs.templates),
        max_positions=model.shape.max_positions,
        correct_threshold=recipe.correct_threshold,
    )
    return RunObjects(model, inputs, engine, setting, recipe, use)
