"""`PaperReference`: a method's source and formula, its differences from the source, and its tests. Imports no torch."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ExpectedEffect", "PaperDifference", "PaperReference", "reference_of"]

Label = Literal["code read", "code read earlier", "paper read", "our reading"]
CODE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}:[\w./-]+")
"""A file of a repository on GitHub at a commit."""
MECHANISM = ("clip_ratio/", "frac_reward_zero_std", "groups/", "ratio/")
"""Prefixes of the metrics that a method's mechanism determines before the policy has learned anything."""
FIRST_SEED = 100
"""The first of the fresh seeds, on which both sides of a comparison meet."""
Kind = Literal["method", "engine", "evaluation", "task", "recipe"]


@dataclass(frozen=True, slots=True)
class PaperDifference:
    """A row of a method's table of differences: a choice in the paper, in the authors' code, and here."""

    subject: str
    paper: str
    code: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEffect:
    """A change of a metric that a method should show against another one, stated before the runs that measure it.

    `metric` is a name in metrics.jsonl. `min_difference` is the smallest difference that counts, in the metric's unit.
    `task` is the packaged recipe of both runs, and `parent` the method of the other run. Both runs have equal
    `runs_matched_by`: generated tokens, or iterations with equally many prompts or answers.

    `settings` are recipe fields of both runs, as on the command line: `method.minibatches = 8`. `own_settings` are
    further fields of the method's run. With these, `parent` may be the method itself: an ablation. The value `@NAME` of
    `own_settings` is the model that the method NAME trained on the task from the same seed.

    A method that shortens or saves states what it keeps: a held-out metric `kept`, larger is better, that may fall by
    less than `kept_margin`. `acted` is a metric without which a comparison says nothing: its mean has to be at least
    `acted_least`. A method that repairs a harm states a metric of its parent's run that shows the harm, another one a
    metric of the method's run that shows what its mechanism did (`acted_in`). A held-out accuracy as the figure of a
    harm is what the parent's training loses of it.
    `is_rewarded`: the method is rewarded with the metric, and its parent is not. `is_papers`: the paper claims it.
    The `plan` of its runs has two learning rates and five seeds, or four rates, up to 20 seeds and three first models.
    Fresh seeds begin at `first_seed`; an effect that is stated again after runs has others.
    """

    metric: str
    direction: Literal["up", "down"]
    task: str
    parent: str
    min_difference: float
    runs_matched_by: Literal["tokens", "iterations"]
    settings: tuple[str, ...] = ()
    own_settings: tuple[str, ...] = ()
    kept: str = ""
    kept_margin: float = 0.02
    acted: str = ""
    acted_least: float = 0.0
    acted_in: Literal["method", "parent"] = "method"
    is_rewarded: bool = False
    is_papers: bool = True
    plan: Literal["short", "whole"] = "short"
    first_seed: int = FIRST_SEED

    @property
    def kind(self) -> Literal["learning", "mechanism"]:
        """Whether the metric is about the trained policy, or about the mechanism: clipping, groups without a signal.

        A mechanism that does its work is no evidence that a policy learns more, nor is a reward that rises where it is
        one.
        """
        return "mechanism" if self.is_rewarded or self.metric.startswith(MECHANISM) else "learning"

    def __post_init__(self) -> None:
        for line in (*self.settings, *self.own_settings):
            if " = " not in line:
                raise ValueError(f"{line!r} is not a setting FIELD = VALUE\nwrite it like method.minibatches = 8")
        if bool(self.acted) != (self.acted_least > 0):
            what = f"acted is {self.acted!r} and acted_least is {self.acted_least:g}"
            raise ValueError(f"{what}\nstate both, with a least value above 0, or neither")

    def claim(self, method: str) -> str:
        """The stated effect of this method as one line. Against the method itself, it names the settings that differ.

        >>> bounds = {"min_difference": 0.1, "runs_matched_by": "iterations"}
        >>> ExpectedEffect(metric="entropy", direction="up", task="sums", parent="grpo", **bounds).claim("x")
        'entropy is higher than with grpo by at least 0.1, on sums, at equal iterations'
        >>> both = {"task": "t", "parent": "p", "kept": "eval/accuracy", **bounds}
        >>> ExpectedEffect(metric="m", direction="down", **both).claim("x")
        'm is lower than with p by at least 0.1, on t, at equal iterations, with eval/accuracy lower by less than 0.02'
        """
        change = {"up": "higher", "down": "lower"}[self.direction]
        own, parent = "", self.parent
        if parent == method:
            changed = {line.partition(" = ")[0] for line in self.own_settings}
            replaced = [line for line in self.settings if line.partition(" = ")[0] in changed]
            own, parent = f" with {', '.join(self.own_settings)}", ", ".join(replaced) or "its usual settings"
        than = f"{self.metric} is {change}{own} than with {parent} by at least {self.min_difference:g}"
        kept = f", with {self.kept} lower by less than {self.kept_margin:g}" if self.kept else ""
        return f"{than}, on {self.task}, at equal {self.runs_matched_by}{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReference:
    """The source of a published method. `formula` is plain text; `proof_tests` are the ids of the tests that verify it.

    `evidence` is what the method was checked against: `code read`, the code of the authors or of a widely used library,
    and `code` is that file of a repository at a commit (`OWNER/NAME@COMMIT:PATH`); `code read earlier`, such
    code, which was not opened again; `paper read`, the text of the paper; `our reading`, neither, so that a formula or
    a central choice is inferred.
    In a difference, *recalled* marks a value that was not checked again in its source, *inferred* one without a source.

    `parent` is the name of the method that it changes; a root has none. `contribution_kind` is what the paper
    contributes, if it is not a method. `year` follows from `arxiv` where there is one. `our_finding` says how the
    method behaved here.

    `expected_effect` is measured by `make atlas`; a method without one gives the reason in `unmeasured_reason`.
    `tuned_settings` are the values of the method's own constants that a comparison chooses among, as the paper does:
    each a group of fields, the paper's first.
    `toy_test` is the test that computes the paper's claim exactly on a small example, if its claim is about an
    expectation or a bound.

    >>> source = {"paper": "GRPO", "arxiv": "2402.03300", "evidence": "paper read"}
    >>> PaperReference(**source, formula="J", differences=(), proof_tests=()).year
    2024
    """

    paper: str
    arxiv: str = ""
    year: int = 0
    evidence: Label
    code: str = ""
    contribution_kind: Kind = "method"
    parent: str = ""
    formula: str
    differences: tuple[PaperDifference, ...]
    proof_tests: tuple[str, ...]
    expected_effect: ExpectedEffect | None = None
    unmeasured_reason: str = ""
    tuned_settings: tuple[tuple[str, ...], ...] = ()
    toy_test: str = ""
    our_finding: str = ""

    def __post_init__(self) -> None:
        if (self.evidence == "code read") != bool(CODE.fullmatch(self.code)):
            what = f"the label is {self.evidence!r} and code is {self.code!r}"
            raise ValueError(
                f"{what}\nset code = OWNER/NAME@COMMIT:PATH with the evidence code read, and with no other"
            )
        if not self.year:
            object.__setattr__(self, "year", year_of(self.arxiv))

    @property
    def source(self) -> str:
        """The paper with its arXiv number, or with its year."""
        return f"{self.paper}, {f'arXiv:{self.arxiv}' if self.arxiv else self.year}"

    @property
    def code_link(self) -> str:
        """The address of the code that was read, on GitHub; empty without one."""
        repository, _, path = self.code.partition(":")
        return f"https://github.com/{repository.replace('@', '/blob/')}/{path}" if self.code else ""


def year_of(arxiv: str) -> int:
    """The year of an arXiv number.

    >>> year_of("2402.03300")
    2024
    """
    if not arxiv:
        raise ValueError("a paper without an arXiv number needs its year\nset year")
    return 2000 + int(arxiv[:2])


def reference_of(method: Callable[..., Any]) -> PaperReference:
    """The `REFERENCE` in the file of a method's function.

    >>> from groupwise.methods import gspo
    >>> reference_of(gspo).arxiv
    '2507.18071'
    """
    return sys.modules[method.__module__].REFERENCE
