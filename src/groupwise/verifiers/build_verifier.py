"""Builds the verifier of a task from its settings, after a check of the task's gold answers."""

from collections.abc import Callable
from dataclasses import dataclass

from groupwise.core import BadData, Usage
from groupwise.data import Task, Verifier, VerifierSettings
from groupwise.sandbox.sandbox import Sandbox
from groupwise.tasks.generated_task import GeneratedTask
from groupwise.tasks.judge_access import JudgeAccess
from groupwise.tasks.rows_task import RowsTask

__all__ = ["VerifierContext"]

Load = Callable[[str, str], Verifier]
"""Makes a verifier from a user's function, given the file and the name of `Function`."""


@dataclass(frozen=True, slots=True)
class VerifierContext:
    """What verifiers are built from, beside their settings. Without a `task`, gold answers are not checked.

    `create_sandbox` is called with keywords of `Sandbox`, once per verifier that needs one (`Code` and those of
    mathematics). `load_function` makes verifiers from a user's functions. `judge_access` is the access of `Judge`; by
    default it reaches only this machine. `default_deadline`, in seconds, limits calls of `GymScore`, and of members of
    `Combined` without a deadline.
    """

    task: Task | None = None
    create_sandbox: Callable[..., Sandbox] = Sandbox
    load_function: Load | None = None
    judge_access: JudgeAccess = JudgeAccess()  # noqa: RUF009
    default_deadline: float = 10.0

    def build(self, kind: VerifierSettings) -> Verifier:
        """The verifier with these settings. `Usage` for another task's verifier, `BadData` for unfit gold answers."""
        name = type(kind).__name__
        generated = self.task.task_settings if isinstance(self.task, GeneratedTask) else None
        if self.task is not None and kind.supported_tasks and not isinstance(generated, kind.supported_tasks):
            what = f"the verifier {name} grades answers of its packaged tasks only"
            raise Usage(what, fix="take exact or last_number")
        verifier = kind.build(self)
        if isinstance(self.task, RowsTask):
            for prompt in (*self.task.training, *self.task.held_out):
                if not kind.fits(gold := prompt.row.get("answer")):
                    evidence, fix = f"{prompt.id}: {str(gold)[:80]}", "correct this row, or use another verifier"
                    if gold is None:
                        evidence = f"the row of {prompt.id} has {', '.join(map(str, prompt.row)) or 'no other column'}"
                        fix = "name the column of gold answers: --columns.answer NAME; or use a verifier without them"
                    raise BadData(
                        f"{name} needs a gold answer that is {kind.gold_answer_format}", evidence=evidence, fix=fix
                    )
        return verifier
