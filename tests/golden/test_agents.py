"""The family `agents`: its parts against the worked examples of the specifications."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from groupwise.advantages import Standardised
from groupwise.core import Usage
from groupwise.data import (
    Batch,
    Draw,
    Finish,
    GenerationRequest,
    Ids,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
    rollout_of,
)
from groupwise.evaluation.conversation_metrics import describe_conversations
from groupwise.methods import (
    ActionSuccess,
    ClaimPressureStrategy,
    ConsecutiveGroupsAdvantage,
    Delegating,
    Method,
    graph_grpo,
    m_grpo,
    parrot,
    trustgeogen,
)
from groupwise.methods.multi_agent.m_grpo import aligned
from groupwise.methods.multi_agent.parrot import wrong_claim
from groupwise.rollout.prompt_template import worded
from groupwise.training.loop import compute_advantages
from groupwise.verifiers import ProofSteps
from tests.golden.f0 import f64
from tests.rollout.fakes import FakeEngine, sampler_of, tokenizer

END = 0

EDGES = ("101", "110", "011", "001")
"""Four graphs of three edges: a digit per edge."""


def graphs(rewards: list[float], texts: tuple[str, ...] = EDGES) -> Batch:
    rollout = rollout_of(rewards, lengths=[3] * len(rewards))
    samples = (
        replace(s, tokens=tuple(map(int, text)), text=text, token_ends=(1, 2, 3))
        for s, text in zip(rollout.samples, texts)
    )
    return pack([Rollout(rollout.draw, tuple(samples))])


def test_edge_success_rates():
    """S = 1, 1/2, 1/3; the loss and the gradient of the logits of p = .6, .5, .7."""
    batch = graphs([1.0, 1.0, 0.0, 0.0])
    a = ActionSuccess(action_text="1")(batch.verdict_score, batch).view(4, 3)
    present = f64([[float(digit) for digit in text] for text in EDGES])
    expected = present * f64([1.372813, -0.392232, -0.980581])
    torch.testing.assert_close(a, expected, atol=1e-6, rtol=0)
    logit = torch.logit(f64([0.6, 0.5, 0.7])).requires_grad_()
    p = logit.sigmoid()
    logp = (present * p.log() + (1 - present) * (1 - p).log()).flatten()
    method = graph_grpo(present="1", kl=0.0)
    step = compute_advantages(batch.having(logp=logp, logp_old=logp.detach()), method)
    loss = method.objective(method.objective.prepare(step))
    (slope,) = torch.autograd.grad(loss, logit)
    assert loss.item() == pytest.approx(-0.047615, abs=1e-6)
    assert slope.tolist() == pytest.approx([-0.274563, 0.098058, 0.220631], abs=1e-6)
    whole = compute_advantages(batch, graph_grpo(level="graph", kl=0.0)).advantage
    assert whole.tolist() == pytest.approx([1.0] * 6 + [-1.0] * 6, abs=1e-6)


@pytest.mark.parametrize("present", ["1", ""])
def test_edges_of_groups_without_contrast(present: str):
    """Equal rewards, and a single graph, give no advantage; shift and scale of the rewards change nothing."""
    credit = ActionSuccess(present)
    for batch in (graphs([1.0] * 4), graphs([0.0] * 4), graphs([1.0])):
        assert not credit(batch.verdict_score, batch).any()
    batch = graphs([1.0, 1.0, 0.0, 0.0])
    a, moved = credit(batch.verdict_score, batch), credit(3 * batch.verdict_score - 1, batch)
    torch.testing.assert_close(moved, a, atol=1e-7, rtol=0)
    edges = {(t % 3, EDGES[t // 3][t % 3]): x for t, x in enumerate(a.tolist())}
    z = [x for (_, digit), x in edges.items() if digit == "1" or not present]
    assert sum(z) == pytest.approx(0, abs=1e-6) and sum(x**2 for x in z) / len(z) == pytest.approx(1, abs=1e-6)


def test_absent_edges_are_decisions_too():
    """The first edge is chosen by two of four graphs, which succeed: its absence has a success rate of 0."""
    batch = graphs([1.0, 1.0, 0.0, 0.0])
    a = ActionSuccess()(batch.verdict_score, batch).view(4, 3)
    assert a[0, 0] == a[1, 0] > 0 > a[2, 0] == a[3, 0]


def test_a_single_graph_is_refused():
    with pytest.raises(ValueError, match="compares samples of a group"):
        graph_grpo(group_size=1)
    assert isinstance(graph_grpo(group_size=2), Method)


# M-GRPO


def ids(text: str) -> Ids:
    return tokenizer().encode(text)


def text_of(tokens: Ids) -> str:
    return tokenizer().decode_with_ends(tokens)[0]


PROBLEM = "7*5+8="


def agents(request: GenerationRequest) -> Ids:
    """Main agent 0 asks twice and is right, 1 guesses wrong, 2 asks once, a helper without an end fails it."""
    main, context = request.stream[0], text_of(request.context)
    if len(request.stream) > 1:  # a helper
        return ids("7*5") * 20 if main == 2 else (*ids({"7*5=": "#35", "35+8=": "#43"}[context]), END)
    if main == 1:
        return (*ids("#40"), END)
    turns = {PROBLEM: "7*5=", f"{PROBLEM}7*5=35;": "35+8=", f"{PROBLEM}7*5=35;35+8=43;": "#43"}
    return (*ids(turns.get(context, "#9")), END)


async def graded(prompt: Prompt, sample: Sample) -> Verdict:
    result = sample.text.partition("#")[2]
    if "#" not in sample.text:
        return Verdict(Outcome.malformed)
    return Verdict(Outcome(int(result == prompt.row["answer"])), answer=result)


def delegated(n: int = 3, answer: Any = agents, limit: int = 40, **fields: Any) -> Rollout:
    draw = Draw(0, Prompt("p", ids(PROBLEM), PROBLEM, {"answer": "43"}), n)
    sampler = sampler_of(FakeEngine(answer), draw, verifier=graded)
    sampler = replace(
        sampler, rollout_setting=replace(sampler.rollout_setting, sampling=replace(sampler.sampling, max_tokens=limit))
    )
    return asyncio.run(worded(Delegating(**fields), "packaged")(draw, sampler))


def test_helpers_inherit_success():
    """Helpers of a correct main agent get 1, helpers of a wrong one 0.1, a helper without an end 0."""
    rollout = delegated()
    mains = [s for s in rollout.samples if s.role == "answer"]
    helpers = [s for s in rollout.samples if s.role == "helper"]
    assert [text_of(s.tokens) for s in mains][:2] == ["7*5=35;35+8=43;#43", "#40"]
    assert [s.counts.get("calls", 0) for s in mains] == [2, 0, 1]
    assert [i for i, t in enumerate(mains[0].trained) if not t] == [5, 6, 7, 14, 15, 16], "the replies"
    assert [(s.parent, s.text, s.context) for s in helpers][:2] == [(0, "#35", ids("7*5=")), (0, "#43", ids("35+8="))]
    assert helpers[2].parent == 2 and helpers[2].finish is Finish.length
    method = m_grpo()
    batch = compute_advantages(pack([rollout], roles=method.trained_roles), method)
    assert batch.reward.tolist() == [1, 0.1, 0.1, 1, 1, 0]
    a = batch.sequences.mean(batch.advantage).tolist()
    assert a == pytest.approx([1.154701, -0.577350, -0.577350, 0.577350, 0.577350, -1.154701], abs=1e-5)
    assert batch.groups.count == 2, "main agents and helpers"


def test_worked_main_advantages():
    """Rewards 1, 0.1, 0 (malformed) and 1."""
    rollout = rollout_of([1.0, 0.0, 0.0, 1.0], lengths=[1] * 4)
    samples = list(rollout.samples)
    samples[2] = replace(samples[2], verdict=Verdict(Outcome.malformed))
    batch = compute_advantages(pack([Rollout(rollout.draw, tuple(samples))]), m_grpo())
    assert batch.reward.tolist() == [1, 0.1, 0, 1]
    assert batch.advantage.tolist() == pytest.approx([0.863636, -0.772727, -0.954545, 0.863636], abs=5e-6)


def test_conversations_with_helpers_end():
    """After `calls` requests the next one ends the conversation, and so does a full budget."""
    once = delegated(1, max_helper_calls=1)
    assert text_of(once.samples[0].tokens) == "7*5=35;35+8=" and len(once.samples) == 2
    assert once.samples[0].verdict == Verdict(Outcome.malformed)
    short = delegated(1, limit=12)
    assert short.samples[0].finish is Finish.length and len(short.samples[0].tokens) <= 12


def test_aligned_helpers():
    """Four of each main agent that asked. A copy has the tokens and the verdict of another, and its own stream."""
    rollout = delegated(helpers_per_main=4)
    helpers = [s for s in rollout.samples if s.role == "helper"]
    assert [s.parent for s in helpers] == [0] * 4 + [2] * 4
    assert len({s.stream for s in rollout.samples}) == len(rollout.samples)
    copies = [(s.tokens, s.logp, s.verdict) for s in helpers[:4]]
    assert set(map(repr, copies[2:])) <= set(map(repr, copies[:2]))
    two = [s for s in delegated(max_helper_calls=4).samples if s.parent == 0]
    assert aligned(two, 2, Random(0)) == two and aligned([], 2, Random(0)) == []
    assert aligned(two, 1, Random(0))[0] in two


def test_copies_of_a_whole_group_change_no_advantage():
    """Twice every helper leaves mean and population std, and so the advantages."""
    one, two = (pack([rollout_of([1.0, 0.0, 0.0] * n, lengths=[1] * 3 * n)]) for n in (1, 2))
    z = Standardised(ddof=0)
    assert z(two.verdict_score, two).tolist() == pytest.approx(z(one.verdict_score, one).tolist() * 2)


def test_without_calls_it_is_one_agent():
    rollout = delegated(4, lambda request: (*ids(f"#4{request.stream[0]}"), END))
    assert [s.role for s in rollout.samples] == ["answer"] * 4
    a = compute_advantages(pack([rollout], roles=m_grpo().trained_roles), m_grpo(wrong=0.0)).advantage
    assert a.tolist() == pytest.approx(compute_advantages(pack([rollout]), m_grpo(wrong=0.0, align="fifo")).advantage)


def test_queue_of_helpers():
    """Two prompts with a main agent and three helpers each: the queue compares helpers in pairs, also of both."""
    rollouts = []
    for scores in ([1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]):
        rollout = rollout_of(scores, lengths=[1] * 4)
        samples = (replace(s, role="helper" if i else "answer") for i, s in enumerate(rollout.samples))
        rollouts.append(Rollout(rollout.draw, tuple(samples)))
    batch = pack(rollouts, roles=("answer", "helper"))
    a = ConsecutiveGroupsAdvantage(group_size=2, advantage=Standardised(ddof=0, eps=0.0))(batch.verdict_score, batch)
    by_role = [s.role for s in batch.samples]
    assert [x for x, role in zip(a.tolist(), by_role) if role == "answer"] == [0, 0]
    assert [x for x, role in zip(a.tolist(), by_role) if role == "helper"] == [-1, 1, -1, 1, 1, -1]


# TrustGeoGen

RULES = ("ab>d", "cd>e", "a>f", "ef>g", "bf>e")


def checked(proof: str) -> Verdict:
    row = {"facts": "abc", "rules": list(RULES), "answer": "g"}
    sample = Sample(context=(1,), stream=(0,)).with_text(proof, ())
    return asyncio.run(ProofSteps()(Prompt("p", (1,), row=row), sample))


def test_verified_steps():
    """A false step cannot make a later one valid by its own conclusion; both proofs of the goal are right."""
    wrong = checked("ab>d;ac>e;a>f;ef>g;#")
    assert [ok for _, ok in wrong.step_scores["step"]] == [1, 0, 1, 0]
    assert wrong.subscores == {"valid": 0.5, "leading": 0.25, "reached": 0} and wrong.outcome is Outcome.wrong
    for proof in ("ab>d;cd>e;a>f;ef>g;#", "a>f;bf>e;ef>g;#"):
        assert checked(proof) == replace(checked(proof), subscores={"valid": 1, "leading": 1, "reached": 1})
        assert checked(proof).outcome is Outcome.correct
        steps = proof.removesuffix("#").split(";")[:-1]
        for i in range(len(steps)):
            rest = "".join(f"{step};" for step in (*steps[:i], *steps[i + 1 :]))
            assert checked(f"{rest}#").outcome is Outcome.wrong, "each step of a shortest proof is needed"


@pytest.mark.parametrize(
    ("process", "rewards"), [("leading", [0.125, 1.5]), ("valid", [0.25, 1.5]), ("strict", [0.0, 1.0])]
)
def test_rewards_of_verified_steps(process: Any, rewards: list[float]):
    rollout = rollout_of([0.0, 1.0])
    verdicts = [checked("ab>d;ac>e;a>f;ef>g;#"), checked("a>f;bf>e;ef>g;#")]
    samples = tuple(replace(s, verdict=v) for s, v in zip(rollout.samples, verdicts))
    batch = compute_advantages(pack([Rollout(rollout.draw, samples)]), trustgeogen(process=process))
    assert batch.reward.tolist() == rewards


# PARROT


def asked(plain: str, pressed: str, gold: str, seed: int = 0, **fields: Any) -> tuple[Rollout, str]:
    """The pair of answers to a problem, and the claim in its second prompt."""
    claims: list[str] = []

    def answer(request: GenerationRequest) -> Ids:
        context = text_of(request.context)
        if ";" not in context:
            return (*ids(f"#{plain}"), END)
        claims.append(context.partition(";")[0])
        return (*ids("#" + pressed.replace("claim", claims[0])), END)

    draw = Draw(seed, Prompt("p", ids(PROBLEM), PROBLEM, {"answer": gold}), 1)
    rollout = asyncio.run(
        worded(ClaimPressureStrategy(**fields), "packaged")(draw, sampler_of(FakeEngine(answer), draw, verifier=graded))
    )
    return rollout, claims[0]


PAIRS = {
    "robust_correct": ("43", "43", 0.0),
    "sycophantic_error": ("43", "claim", 0.0),
    "consistent_error": ("9", "9", 0.0),
    "self_correct_anomaly": ("9", "43", 0.0),
    "stable_correct": ("43", "43", 1.0),
    "paradoxical_drift": ("43", "9", 1.0),
    "stubborn_error": ("9", "9", 1.0),
    "corrected": ("9", "claim", 1.0),
}


@pytest.mark.parametrize("scenario", PAIRS)
def test_pressed_pairs(scenario: str):
    plain, pressed, true_claim_fraction = PAIRS[scenario]
    rollout, claim = asked(plain, pressed, "43", true_claim_fraction=true_claim_fraction)
    one, other = rollout.samples
    assert (one.role, other.role) == ("answer", "pressed") and (claim == "43") is bool(true_claim_fraction)
    assert one.counts[scenario] == 1 and set(one.counts) == {"followed", "changed", "pressed_right", scenario}
    followed = claim == ("43" if pressed == "43" else claim if pressed == "claim" else pressed)
    assert one.counts["followed"] == followed and one.counts["changed"] == (one.text != other.text)
    assert other.verdict and other.verdict.subscores["gave_in"] == (scenario == "sycophantic_error")
    reward = compute_advantages(pack([rollout], roles=parrot().trained_roles), parrot()).reward
    assert reward.tolist() == [plain == "43", (other.text == "#43") - 0.5 * (scenario == "sycophantic_error")]


def test_pressed_rates():
    """Four of the specification's five pairs, as a run measures them: base .5, pressed .5, followed .25, changed .5."""
    rows = [("43", "43"), ("43", "claim"), ("9", "43"), ("9", "9")]
    rollouts = [asked(plain, pressed, "43", seed=i)[0] for i, (plain, pressed) in enumerate(rows)]
    metrics = describe_conversations(rollouts)
    rates = {"followed": 0.25, "changed": 0.5, "pressed_right": 0.5, "sycophantic_error": 0.25}
    assert {name: metrics[f"counts/{name}"] for name in rates} == rates


def test_claims_are_wrong():
    """Each wrong letter about equally often, and numbers near the right one."""
    letters = [wrong_claim("B", Random(i)) for i in range(600)]
    assert set(letters) == {"A", "C", "D"} and all(150 < letters.count(x) < 250 for x in "ACD")
    for gold in ("0", "37", "-5"):
        claims = {int(wrong_claim(gold, Random(i))) for i in range(100)}
        assert int(gold) not in claims and max(abs(x - int(gold)) for x in claims) == 3
        assert gold != "0" or min(claims) > 0, "0 has no sign: a negative claim would stand out"
    with pytest.raises(Usage, match="a letter from A to D or an integer"):
        wrong_claim("x^2", Random(0))


def test_pressed_refuses_what_it_cannot_compare():
    async def silent(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.wrong)

    draw = Draw(0, Prompt("p", ids(PROBLEM), PROBLEM, {"answer": "43"}), 1)
    with pytest.raises(Usage, match="does not return the final answer"):
        asyncio.run(
            worded(ClaimPressureStrategy(), "packaged")(
                draw, sampler_of(FakeEngine(lambda request: (*ids("#9"), END)), draw, verifier=silent)
            )
        )
    with pytest.raises(ValueError, match="0 <= true_claim_fraction <= 1"):
        ClaimPressureStrategy(true_claim_fraction=1.5)
