"""Explains a token's gradient: each number from its sample's outcome to `d loss / d logp`."""

from dataclasses import dataclass

from groupwise.config.diff import label
from groupwise.core import BadData, Usage
from groupwise.methods import Method
from groupwise.objective import ReportsClipping, token_ratio
from groupwise.whatif.compare_methods import OWN
from groupwise.whatif.recompute_method import RecomputedMethod, recompute
from groupwise.whatif.stored_iteration import StoredIteration, stored_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLink:
    """One number on the way to a token's gradient: its name, its value, and the component that computes it."""

    number_name: str
    number_value: float | str | None
    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientChain:
    """A token and the numbers that lead to its gradient. `sample_number` and `token_number` are numbered from 1.

    `sample_token_count` is the number of tokens of the sample. `omission_notes` name the loss terms and the samples
    that are left out, and say where the method would draw other prompts or sample other answers.
    """

    sample_number: int
    token_number: int
    sample_token_count: int
    token_text: str
    token_id: int
    links: tuple[GradientLink, ...]
    omission_notes: tuple[str, ...]


def explain_token(stored: StoredIteration, sample: int, token: int, name: str, method: Method) -> GradientChain:
    """Compute how a token gets its gradient: outcome, reward, advantage, ratio, clip, weight, share, gradient.

    `sample` is a line of the file and `token` a token of it, both from 1. `Usage` if there is no such one, `BadData` if
    the method does not train it.
    """
    check_range("sample", sample, len(stored.sample_records), f"iteration {stored.iteration}")
    line = stored.sample_records[sample - 1]
    check_range("token", token, line["length"], f"sample {sample}")
    computed = recompute(stored, name, method)
    at = index_of(stored, computed, sample, token)
    start = int(stored.token_columns["lengths"][: sample - 1].sum()) + token - 1
    ends = stored.token_columns["ends"]
    text = line["text"][int(ends[start - 1]) if token > 1 else 0 : int(ends[start])]
    links = (*before_loss(computed, at, line["outcome"], line["score"]), *of_loss(stored, computed, at, start))
    return GradientChain(
        sample_number=sample, token_number=token, sample_token_count=line["length"], token_text=text,
        token_id=int(stored.token_columns["tokens"][start]), links=links, omission_notes=computed.omission_notes,
    )  # fmt: skip


def check_range(what: str, value: int, last: int, where: str) -> None:
    """Raise `Usage` unless a number is from 1 to `last`."""
    if not 1 <= value <= last:
        raise Usage(f"{where} has no {what} {value}", fix=f"choose one from 1 to {last}: --{what} {last}")


def index_of(stored: StoredIteration, computed: RecomputedMethod, sample: int, token: int) -> int:
    """The index of a token in the method's batch. `BadData` if the method does not train it."""
    key = next(
        (k for k, index in zip(stored.batch.sample_keys, stored.sample_line_indices) if index == sample - 1), None
    )
    batch = computed.batch
    if key in batch.sample_keys:
        here = (batch.sequences.index == batch.sample_keys.index(key)) & (batch.index_in_sample == token - 1)
        if bool(here.any()):
            return int(here.nonzero())
    why = stored.sample_records[sample - 1]["dropped"] or "it is masked, dropped by a filter, or no policy sampled it"
    what = f"{computed.method_name} does not train token {token} of sample {sample}"
    raise BadData(what, evidence=why, fix="name a token that it trains; the report shows the others in grey")


def before_loss(computed: RecomputedMethod, at: int, outcome: str, score: float | None) -> tuple[GradientLink, ...]:
    """The numbers from the sample's outcome to the token's advantage."""
    method, batch = computed.method, computed.batch
    verdict = f"{outcome}, score {score:g}" if score is not None else outcome
    advantage = ", ".join(label(part) for part in (*method.advantage, method.credit))
    return (
        GradientLink(number_name="outcome", number_value=verdict, component="the verifier"),
        GradientLink(
            number_name="reward",
            number_value=float(batch.reward[batch.sequences.index[at]]),
            component=label(method.shaping),
        ),
        GradientLink(number_name="advantage", number_value=float(batch.advantage[at]), component=advantage),
    )


def of_loss(stored: StoredIteration, computed: RecomputedMethod, at: int, row: int) -> tuple[GradientLink, ...]:
    """The numbers from a token's ratio to its gradient; for the run's method also the gradient that the run stored."""
    objective, batch = computed.method.objective, computed.batch
    ratio = getattr(objective.surrogate, "ratio", token_ratio)
    clip = "no bounds"
    if isinstance(objective.surrogate, ReportsClipping):
        low, high = (bool(x[at]) for x in objective.surrogate.clipped(batch))
        clip = "at the lower bound" if low else "at the upper bound" if high else "not clipped"
    gradient = float(computed.logp_gradient[at])
    effect = "a step raises it" if gradient < 0 else "a step lowers it" if gradient > 0 else "no effect"
    share = float(batch.loss_share[at])
    divisor = f": 1 / {1 / share:.6g}" if share else ""
    links = [
        GradientLink(number_name="ratio", number_value=float(ratio(batch)[at]), component=label(ratio)),
        GradientLink(number_name="clip", number_value=clip, component=label(objective.surrogate)),
        GradientLink(number_name="weight", number_value=float(batch.weight[at]), component=label(objective.weights)),
        GradientLink(number_name="share", number_value=share, component=label(objective.aggregate) + divisor),
        GradientLink(number_name="gradient", number_value=gradient, component=f"d loss / d logp: {effect}"),
    ]
    if (of_run := stored_gradient(stored)) is not None and computed.method_name == OWN:
        index = int((stored.rows == row).nonzero())
        links.append(
            GradientLink(
                number_name="stored",
                number_value=float(of_run[index]),
                component="the gradient of the run, with all terms",
            )
        )
    return tuple(links)
