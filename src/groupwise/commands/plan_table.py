"""The text of `groupwise plan`: tables of memory and of seconds, timelines, and the nearest recipe that fits."""

from collections.abc import Iterator, Mapping, Sequence

from groupwise.commands.terminal_tables import aligned
from groupwise.config.recipe import Recipe
from groupwise.core import counted
from groupwise.planning.cost_model import learning_kernels
from groupwise.planning.decoding_step_kernels import LAUNCH, step_kernels
from groupwise.planning.device_splits import DevicePlacement, SimulatedPlacement, obstacle
from groupwise.planning.draw_simulation_timeline import timeline_text
from groupwise.planning.fit_in_memory import Change, cached_tokens_that_fit, largest_microbatch, longest_sample
from groupwise.planning.machines import PlannedMachines
from groupwise.planning.pipeline_memory import pipeline_plan_line
from groupwise.planning.plan import RunPlan
from groupwise.planning.process_memory import GIB, ProcessMemoryPrediction, advice
from groupwise.planning.send_rounds import send_rounds
from groupwise.planning.split_settings import ADDRESSES, access_words, other_hosts_commands, split_settings, takes_nccl

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "gathered": ("gathered",),
    "gradients": ("gradients",),
    "moments": ("optimizer",),
    "side models": ("side models",),
    "activations": ("activations",),
    "logits": ("logits",),
    "cache": ("rows", "prompts"),
    "engine": ("engine",),
    "other": ("samples", "checkpoint"),
}
"""The columns of the table of memory, with the uses of memory that each adds up."""
NOT_INCLUDED = "not included: prefills, verdicts, communication within an engine, evaluation, checkpoints"


def plan_lines(planned: RunPlan) -> list[str]:
    """The plan as lines of text."""
    lines = [*heading(planned), "", *memory_table(planned), ""]
    if not planned.simulated_placements:
        return [*lines, *does_not_fit(planned)]
    lines += [*largest_table(planned), *longest_sample_lines(planned), ""]
    lines += [*time_table(planned), *publish_lines(planned), *launch_lines(planned), NOT_INCLUDED]
    lines += ["", *best_lines(planned), *beyond_lines(planned)]
    for trial in dict.fromkeys((planned.one_version, planned.best)):
        lines += ["", f"two iterations, {described(trial)}:", *timeline_text(trial.simulation, trial.warm)]
    return lines


def machines_table(plans: Sequence[RunPlan]) -> list[str]:
    """A line for each machine: memory of its fullest process, and the best split or the nearest recipe that fits."""
    rows = [["", "GiB needed", "of", "s per iteration", "tokens/s", "best"]]
    for plan in plans:
        placement = plan.best.placement if plan.simulated_placements else plan.placements[0]
        peak = max(memory.peak for memory in plan.memories(placement).values())
        figures = [seconds(plan.best.seconds), f"{plan.best.rate:,.0f}"] if plan.simulated_placements else ["-", "-"]
        changes = " ".join(f"--{path} {value}" for path, value in plan.recipe_changes or ())
        text = (
            described(plan.best)
            if plan.simulated_placements
            else f"does not fit{f'; fits with {changes}' if changes else ''}"
        )
        rows.append([plan.machines.label, f"{peak / GIB:,.1f}", f"{plan.machines.memory_gib:g}", *figures, text])
    lines = aligned(rows)
    return [*lines, "", *(f"{plan.machines.name}: {plan.machines.rates_source}" for plan in plans), NOT_INCLUDED]


def heading(planned: RunPlan) -> list[str]:
    """Lines about the machines, the run and the assumed lengths."""
    recipe, machines, lengths = planned.recipe, planned.machines, planned.token_lengths
    answers = recipe.prompts * recipe.method.group_size
    mean, most = f"{lengths.mean:,.0f}", f"{recipe.sampling.max_tokens:,}"
    return [
        f"{machines.label}, {machines.memory_gib:g} GiB each; rates: {machines.rates_source}",
        f"{planned.weights:,} weights in {recipe.machine.dtype}; {counted(answers, 'answer')} per iteration",
        f"prompts of {counted(lengths.prompt_tokens, 'token')}, answers of {mean} on average and at most {most}",
        "predicted, not measured; memory counts all answers with the largest length",
    ]


def peaks(planned: RunPlan, placement: DevicePlacement) -> Iterator[tuple[str, ProcessMemoryPrediction]]:
    """The memory of a placement's processes while they sample, and in the largest phase of learning, with labels."""
    for memory in planned.memories(placement).values():
        yield from peaks_of(placement.label, memory)


def peaks_of(label: str, memory: ProcessMemoryPrediction) -> Iterator[tuple[str, ProcessMemoryPrediction]]:
    """The memory of a process while it samples, and in the largest phase of learning, with labels."""
    learning = {name: parts for name, parts in memory.phase_bytes.items() if name != "sampling"}
    largest = max(learning, key=lambda name: sum(learning[name].values()), default="")
    for phase in ("sampling", largest):
        if phase in memory.phase_bytes:
            yield f"{label}: {phase}", memory.during(phase)


def memory_table(planned: RunPlan) -> list[str]:
    """The memory of each kind of process: a row for sampling, and one for the largest phase of learning."""
    return uses_table(dict(item for placement in planned.placements for item in peaks(planned, placement)))


def pipeline_plan_lines(recipe: Recipe, memory: ProcessMemoryPrediction, machines: PlannedMachines) -> list[str]:
    """The memory of a run with a pipeline of diffusers, as lines of text."""
    needed = f"{memory.peak / GIB:,.1f} GiB of {machines.memory_gib:g} GiB"
    fits = memory.peak <= machines.memory
    return [
        f"{machines.name}, {machines.memory_gib:g} GiB; {recipe.machine.dtype}; one device samples and learns",
        pipeline_plan_line(recipe, memory),
        "predicted, not measured; seconds are not modelled for pipelines",
        "",
        *uses_table(dict(peaks_of("a device", memory))),
        "",
        f"it fits: {needed}" if fits else f"it does not fit: {needed}; {advice(recipe, memory)}",
    ]


def uses_table(memories: Mapping[str, ProcessMemoryPrediction]) -> list[str]:
    """A row for each memory, and a column for each use."""
    used = [c for c, uses in COLUMNS.items() if any(m.parts.get(use) for m in memories.values() for use in uses)]
    rows = [
        [label, *(gib(sum(memory.parts.get(use, 0) for use in COLUMNS[c])) for c in used), gib(memory.peak)]
        for label, memory in memories.items()
    ]
    return aligned([["GiB per device", *used, "all"], *rows], numbers=True)


def gib(bytes_: int) -> str:
    """Bytes in GiB; `-` for none.

    >>> gib(3 << 29), gib(1 << 20), gib(0)
    ('1.5', '0.001', '-')
    """
    return "-" if not bytes_ else f"{bytes_ / GIB:,.1f}" if bytes_ >= GIB / 20 else f"{bytes_ / GIB:.3f}"


def largest_table(planned: RunPlan) -> list[str]:
    """The largest microbatch and number of rows that fit in each kind of process."""
    rows = []
    recipe, shape, machines, prompt = (
        planned.recipe,
        planned.model_shape,
        planned.machines,
        planned.token_lengths.prompt_tokens,
    )
    longest = prompt + recipe.sampling.max_tokens
    for placement in planned.placements:
        cells = ["-", "-", "-"]
        for process in placement.processes.values():
            if process.has_learner:
                cells[0] = f"{largest_microbatch(recipe, shape, prompt, machines, process):,}"
            if process.has_engine:
                cached = cached_tokens_that_fit(recipe, shape, prompt, machines, process)
                cells[1:] = [f"{int(cached / length):,}" for length in (longest, planned.token_lengths.live)]
        rows.append([placement.label, *cells])
    head = ["the largest that fit", "microbatch_tokens", "rows, all at the limit", "rows of mean length"]
    return aligned([head, *rows], numbers=True)


def longest_sample_lines(planned: RunPlan) -> list[str]:
    """A line about the length of a sample from which context parallelism would be needed, for splits over devices."""
    learners = [p for p in planned.placements if p.learner_devices > 1]
    if not learners:
        return []
    processes = (next(work for work in p.processes.values() if work.has_learner) for p in learners)
    arguments = planned.recipe, planned.model_shape, planned.token_lengths.prompt_tokens, planned.machines
    longest = max(longest_sample(*arguments, process) for process in processes)
    if longest >= planned.model_shape.max_positions:
        return [f"a sample of all {longest:,} positions fits on one device: no context parallelism is needed"]
    return [f"samples of more than {longest:,} tokens need context parallelism, which this version does not have"]


def time_table(planned: RunPlan) -> list[str]:
    """A row for each staleness: the phases of an iteration alone, and the simulated iteration with its best split."""
    head = ["s per iteration", "sampling", "learning", "publishing", "all", "tokens/s", "learner", "rows", "oldest"]
    rows = []
    for trial in planned.simulated_placements:
        simulation, warm = trial.simulation, trial.warm
        phases = (trial.sampling(), trial.learning, trial.simulation_setup.publish_seconds, trial.seconds)
        live = simulation.rows(warm) * trial.run_scale / trial.placement.engines
        busy = [
            f"{simulation.learning(warm):.0%}",
            f"{live:,.0f}/{trial.simulation_setup.max_num_seqs:,}",
            str(simulation.largest_staleness),
        ]
        rows.append(
            [
                f"staleness {trial.max_staleness}, {trial.placement.label}",
                *map(seconds, phases),
                f"{trial.rate:,.0f}",
                *busy,
            ]
        )
    return aligned([head, *rows], numbers=True)


def publish_lines(planned: RunPlan) -> list[str]:
    """A line about the rate of sending weights to the engines; none if all of them share the learner's devices."""
    if not any(trial.simulation_setup.publish_seconds for trial in planned.simulated_placements):
        return []
    machines, hosts = planned.machines, max(1, planned.best.placement.engine_hosts)
    assumed = "assumed: the link's" if machines.host_count == 1 else "assumed: the network's"
    basis = assumed if machines.publish_bandwidth_gb_s == "link" else "measured or given"
    rate = f"{machines.publish_rate(hosts) / 1e9:,.3g} GB/s ({basis})"
    rounds = len(send_rounds(hosts))
    way = "to all at a time" if rounds == 1 else f"in {rounds} rounds, in which hosts pass them on; the first one"
    return [f"publishing sends one copy of the weights to each host of engines, {way}: {rate}"]


def launch_lines(planned: RunPlan) -> list[str]:
    """A line about the kernels that a GPU launches; none for CPUs."""
    recipe, shape = planned.recipe, planned.model_shape
    if planned.machines.device_type == "cpu":
        return []
    steps = recipe.method.minibatches * recipe.method.epochs
    learning = learning_kernels(recipe, shape, planned.token_lengths, planned.best.placement.learner_devices)
    line = f"a learner launches {learning:,} in the {steps} optimizer steps of an iteration"
    if planned.machines.decode_step_overhead_ms == "counted":
        line = f"a decoding step launches {step_kernels(recipe, shape):,}, {line}"
    return [f"kernels (counted): {line}", f"a launch counts {LAUNCH * 1e6:g} microseconds (assumed)"]


def beyond_lines(planned: RunPlan) -> list[str]:
    """Why splits of this plan are not run by this version, or how to plan such splits; none if all are run."""
    refused = {p.label: why for p in planned.placements if (why := obstacle(p, planned.recipe, planned.model_shape))}
    if planned.unsupported_split_fits:
        return ["splits that this version does not run are left out; --all-splits plans them, too"]
    return [f"not runnable by this version: {label}: {why}" for label, why in refused.items()]


def seconds(x: float) -> str:
    """Seconds with a digit after the point, or three for a short time; `-` for none.

    >>> seconds(1234.56), seconds(0.01234), seconds(0.0)
    ('1,234.6', '0.012', '-')
    """
    return "-" if not x else f"{x:,.1f}" if x >= 1 else f"{x:.3f}"


def best_lines(planned: RunPlan) -> list[str]:
    """The best trial, and the best one in which each sample has one version, each with the settings that start it.

    It is called reproducible only where equal runs write equal bytes; elsewhere a line says why they do not.
    """
    best, pinned, cause = planned.best, planned.one_version, planned.bits_vary
    after = [f"equal runs may differ: {cause}"] if cause else []
    if trial_commands(planned, best):
        after.append("docs/two-hosts.md explains HOST, secret and $addresses")
    if any(takes_nccl(planned.recipe, trial.placement) for trial in (best, pinned)):
        by_nccl = "groupwise serve --nccl, and --engine-nccl HOST for the run, send weights by NCCL"
        after.append(f"on a network that is yours alone: {by_nccl}, which encrypts nothing")
    if best == pinned:
        claim = "" if cause else ", so runs are reproducible"
        return [f"best: {described(best)}; each sample has one version{claim}", *settings_lines(planned, best), *after]
    claim = "" if cause else ", which is reproducible"
    return [
        f"best: {described(best)}",
        *settings_lines(planned, best),
        f"best with one version per sample{claim}: {described(pinned)}; {pinned.rate / best.rate:.0%} of its tokens/s",
        *settings_lines(planned, pinned),
        *after,
    ]


def settings_lines(planned: RunPlan, trial: SimulatedPlacement) -> list[str]:
    """Lines with the settings that start a trial, and with the commands for several hosts.

    None if this version refuses it, or the recipe has the settings and needs no other word.
    """
    settings = trial_settings(planned, trial)
    words = [f'--{path} "{value}"' if value == ADDRESSES else f"--{path} {value}" for path, value in settings]
    words += trial_access(planned, trial)
    commands = [f"  {what}: {command}" for what, command in trial_commands(planned, trial).items()]
    return [*commands, *["  started with: " + " ".join(words)] * bool(words)]


def trial_commands(planned: RunPlan, trial: SimulatedPlacement) -> dict[str, str]:
    """The commands that start a trial on other hosts, a command for each part; none if this version refuses it."""
    if obstacle(trial.placement, planned.recipe, planned.model_shape):
        return {}
    return other_hosts_commands(planned.recipe, trial.placement)


def trial_access(planned: RunPlan, trial: SimulatedPlacement) -> list[str]:
    """The words that start a trial and that no recipe can have; none if this version refuses it."""
    if obstacle(trial.placement, planned.recipe, planned.model_shape):
        return []
    return access_words(planned.recipe, trial.placement)


def trial_settings(planned: RunPlan, trial: SimulatedPlacement) -> list[Change]:
    """The changes of the recipe that start a trial; none if this version refuses it."""
    if obstacle(trial.placement, planned.recipe, planned.model_shape):
        return []
    return split_settings(planned.recipe, trial.placement, trial.max_staleness)


def described(trial: SimulatedPlacement) -> str:
    """A trial in words, with the size of its engines."""
    placement = trial.placement
    size = (
        f", {counted(placement.engines, 'engine')} of {placement.tensor_parallel} devices"
        if placement.tensor_parallel > 1
        else ""
    )
    return f"staleness {trial.max_staleness}, {placement.label}{size}"


def does_not_fit(planned: RunPlan) -> list[str]:
    """Why no placement fits, and the nearest recipe and number of devices that do."""
    placement = planned.placements[0]
    memory = max(planned.memories(placement).values(), key=lambda memory: memory.peak)
    needed, available = memory.peak / GIB, planned.machines.memory_gib
    lines = [f"it does not fit: {placement.label} with {needed:,.1f} GiB of {available:g} GiB, nor does another split"]
    if planned.recipe_changes:
        lines.append(
            "nearest recipe that fits: " + " ".join(f"--{path} {value}" for path, value in planned.recipe_changes)
        )
    if planned.smallest_device_count:
        count, machines = planned.smallest_device_count, planned.machines
        hosts = f" in hosts of {machines.device_count}" if machines.host_count > 1 else ""
        lines.append(f"unchanged it fits on {count:,} devices{hosts}")
    if planned.unsupported_split_fits:
        lines.append("it fits with a split that this version does not run: --all-splits")
    if not planned.recipe_changes and not planned.smallest_device_count and not planned.unsupported_split_fits:
        lines.append("no number of devices is enough: use a smaller model")
    return lines
