"""The words of sampling strategies: two forms of each text, and how the prose is read back."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.registry import methods
from groupwise.data import Draw, GenerationRequest, Ids, Outcome, Prompt, Rollout, Sample, Verdict, with_fields
from groupwise.methods import (
    Delegating,
    DraftAndRefine,
    EarlyExits,
    EarlyStoppingTurns,
    HintWriter,
    MetaPredictions,
    PolicyWrittenHints,
    RecoveryPrompts,
    grpo,
    hill,
    igrpo,
    m_grpo,
)
from groupwise.methods.sampling.selective_rollout import actions
from groupwise.models import Tokenizer
from groupwise.rollout import HintEscalation
from groupwise.rollout.prompt_template import AUTO, FORMS, fill, worded, wordings
from groupwise.tasks import blank_tokenizer, calculator_tokenizer
from groupwise.training.strategy_default_texts import with_wording, wording_notes
from tests.models.test_templates import CHATML, trained
from tests.rollout.fakes import FakeEngine, sampler_of

WITH_TEXTS = sorted(name for name, method in methods().items() if list(wordings(method())))
CHARACTERS = "".join(map(chr, range(0x20, 0x7F))) + "\n—"
END = 0
PROBLEM = "What is 7*5?"


def prose_tokenizer() -> Tokenizer:
    """Characters, and more words than characters: a model with it reads prose."""
    words = [f"word{i}" for i in range(200)]
    fast = Fast(models.WordLevel({t: i for i, t in enumerate(("<end>", *CHARACTERS, *words))}, unk_token=""))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Fuse()
    return Tokenizer.of(fast, [END])


TOKENIZER = prose_tokenizer()


async def says_35(prompt: Prompt, sample: Sample) -> Verdict:
    outcome = Outcome.correct if "35" in sample.text else Outcome.wrong
    return Verdict(outcome, answer=sample.text, feedback="7*5 is not 12.")


def asked(strategy: Any, written: Callable[[str, GenerationRequest], str], n: int = 2, **row: Any) -> Rollout:
    """The rollout of a strategy in prose. `written` gets the text of a prompt, and returns an answer."""

    def tokens(request: GenerationRequest) -> Ids:
        return (*TOKENIZER.encode(written(TOKENIZER.decode(request.context), request)), END)

    draw = Draw(0, Prompt("p", TOKENIZER.encode(PROBLEM), PROBLEM, row), n)
    sampler = sampler_of(FakeEngine(tokens), draw, verifier=says_35, tokenizer=TOKENIZER)
    sampling = replace(sampler.rollout_setting.sampling, max_tokens=4000)
    sampler = replace(sampler, rollout_setting=replace(sampler.rollout_setting, sampling=sampling))
    return asyncio.run(worded(strategy, "prose")(draw, sampler))


# The two forms


def test_methods_that_write_prompts_have_texts() -> None:
    assert len(WITH_TEXTS) >= 15 and {"hill", "igrpo", "masa", "sage_hint", "s_grpo", "m_grpo"} <= set(WITH_TEXTS)


@pytest.mark.parametrize("name", WITH_TEXTS)
def test_each_form_is_complete_and_reads_back_equal(name: str, tmp_path: Path) -> None:
    """No field stays `auto`; prose templates have words; the resolved method is written and read with equal texts."""
    for form in FORMS:
        method = worded(methods()[name](), form)
        assert AUTO not in [w.text for w in wordings(method)] and worded(method, "packaged") is method
        if form == "prose":
            assert not any(w.wordless for w in wordings(method))
        path = tmp_path / f"{form}.toml"
        path.write_text(write(Recipe(method=method)))
        assert read_recipe(path).method == method


@pytest.mark.parametrize("name", WITH_TEXTS)
def test_a_default_that_is_a_text_of_the_packaged_tasks_is_auto(name: str) -> None:
    """No default of a published method has a template, or a delimiter, of the packaged tasks."""
    for part in with_fields(methods()[name]().strategy):
        for field, value in getattr(part, "__dataclass_fields__", {}).items():
            text = getattr(part, field)
            assert not (isinstance(text, str) and re.search(r"\{\w+\}|^[#=;]$", text)), (field, value)


def test_forms_are_given_to_parts_in_parts() -> None:
    wrapped = worded(RecoveryPrompts(inner_strategy=HintEscalation(PolicyWrittenHints())), "packaged")
    hints = getattr(wrapped.inner_strategy, "hints", None)
    assert isinstance(hints, PolicyWrittenHints) and (hints.prompt_template, hints.tokens_per_level) == (
        "{solution};{problem}",
        8,
    )
    assert [w.field_path for w in wordings(wrapped)] == [
        "inner_strategy.hints.tokens_per_level",
        "inner_strategy.hints.prompt_template",
        "inner_strategy.prompt_template",
        "prompt_template",
    ]
    own = DraftAndRefine(refinement_prompt_template="{draft} {problem}")
    assert worded(own, "prose") is own, "an own text stays"


def test_a_text_without_a_form_is_never_written() -> None:
    with pytest.raises(AssertionError, match="has no words yet"):
        fill(AUTO, {})


# The model decides


def test_the_tokenizer_decides() -> None:
    recipe = Recipe(method=igrpo())
    characters = (calculator_tokenizer(), blank_tokenizer())
    for fast in characters:
        packaged = Tokenizer.of(fast, [1])
        assert with_wording(recipe, packaged).method.strategy == worded(DraftAndRefine(), "packaged")
    for reader in (trained(CHATML), TOKENIZER):
        assert with_wording(recipe, reader).method.strategy == worded(DraftAndRefine(), "prose")
    asking = replace(recipe, evaluate=replace(recipe.evaluate, strategy=Delegating()))
    assert with_wording(asking, TOKENIZER).evaluate.strategy == worded(Delegating(), "prose")
    plain = Recipe(method=grpo())
    assert with_wording(plain, TOKENIZER) == plain


def test_notes_name_the_form_and_texts_without_words() -> None:
    lines = list(wording_notes(Recipe(method=igrpo()), TOKENIZER))
    assert (
        len(lines) == 1 and "method.strategy.refinement_prompt_template is auto, here prose (our wording)" in lines[0]
    )
    lines = list(wording_notes(Recipe(method=igrpo()), Tokenizer.of(calculator_tokenizer(), [1])))
    assert "here packaged: '{problem}{draft};{problem}'" in lines[0]
    for words, wordless in (("{problem}{draft};{problem}", True), ("{problem} Draft: {draft}", False)):
        recipe = Recipe(method=igrpo(refinement_prompt_template=words))
        assert ["this model reads prose" in line for line in wording_notes(recipe, TOKENIZER)] == [True] * wordless
        assert not list(wording_notes(recipe, Tokenizer.of(calculator_tokenizer(), [1])))
    assert not any("reads prose" in line for line in wording_notes(Recipe(method=worded(hill(), "prose")), TOKENIZER))
    both = Recipe(method=m_grpo())
    both = replace(both, evaluate=replace(both.evaluate, strategy=Delegating(max_helper_calls=2)))
    assert len(list(wording_notes(both, TOKENIZER))) == 7, "each text once"


# What comes back is read


def test_a_hint_is_the_text_in_its_tags() -> None:
    def answer(prompt: str, request: GenerationRequest) -> str:
        if "Pedagogical Hint Generator" in prompt:
            assert f"1) Original Question:\n{PROBLEM}\n" in prompt and "Five sevens." in prompt
            return "<analysis>It added.</analysis>\n\n<hint>\nThink of five sevens.\n</hint>"
        return "35" if prompt.endswith(f"{PROBLEM}\n\nThink of five sevens.") and request.stream[0] % 2 else "12"

    rollout = asked(HintWriter(hint_count=2), answer, solution="Five sevens.", answer="35")
    hints = [s.verdict.value for s in rollout.samples if s.role == "hint" and s.verdict]
    assert hints and all(value > 0 for value in hints)
    rollout = asked(HintWriter(hint_count=2), lambda prompt, _: "No tags.", solution="Five sevens.", answer="35")
    assert [s.verdict.value for s in rollout.samples if s.role == "hint" and s.verdict] == [-0.2, -0.2], "refused"


def test_a_helper_is_asked_in_tags() -> None:
    def answer(prompt: str, request: GenerationRequest) -> str:
        if prompt.count("<tool_response>") > 1:
            return "It is 35."
        if "You can leave parts of the work to a helper" in prompt:
            return "I ask.\n<tool_call>\nCompute 7*5.\n</tool_call>"
        assert prompt.startswith("Compute 7*5.\n\nSolve this task")
        return "Five sevens are 35. <result> 35 </result>"

    rollout = asked(Delegating(max_helper_calls=2), answer, n=1)
    main, helper = rollout.samples
    assert (main.role, helper.role, helper.parent) == ("answer", "helper", 0)
    assert "<tool_response>\n35\n</tool_response>It is 35." in TOKENIZER.decode(main.tokens)
    assert main.verdict and helper.verdict and main.verdict.outcome is helper.verdict.outcome is Outcome.correct


def test_a_thought_ends_at_its_tag_and_an_exit_is_told_to_answer() -> None:
    def answer(prompt: str, request: GenerationRequest) -> str:
        return "35" if request.already_generated_count else "Let me think.</think>35"

    rollout = asked(EarlyExits(), answer, n=3)
    *exits, whole = [TOKENIZER.decode(s.tokens) for s in rollout.samples]
    assert whole == "Let me think.</think>35" and len(exits) == 2
    for text in exits:
        thought, told, rest = text.partition("Time is limited, stop thinking and start answering.\n</think>\n\n")
        assert "Let me think.".startswith(thought) and told and rest == "35"


def test_a_prediction_is_json_after_its_reasoning() -> None:
    said = '<meta>Easy.</meta>\n{"math_notion": ["sevens"], "pass_rate": 4, "solution_length": 2}'

    def answer(prompt: str, request: GenerationRequest) -> str:
        return said if "pass_rate" in prompt else ("sevens: 35", "12")[request.stream[0] % 2]

    rollout = asked(MetaPredictions(prediction_count=2), answer)
    parts = [s.verdict.subscores for s in rollout.samples if s.role == "prediction" and s.verdict]
    assert parts == [{"length": 0.0, "rate": 1.0, "notions": 1.0}] * 2


def test_an_action_follows_its_word() -> None:
    strategy = worded(EarlyStoppingTurns(), "prose")
    sample = Sample(context=(1,), stream=(0,), limit=99)
    text = "Thought: look first.\nAction: go to desk 1"
    ids = TOKENIZER.encode(text)
    sample = sample.with_tokens(ids, (0,) * len(ids), (0.0,) * len(ids), (), (), ()).with_text(
        *TOKENIZER.decode_with_ends(ids)
    )
    assert actions(sample, strategy.action_marker) == ["go to desk 1"] and actions(sample, "") == [text]
