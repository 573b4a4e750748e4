"""`MaskedPolicy`: a masked model and its schedule as one trainable policy, whose tokens are commits and knobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.core import Usage
from groupwise.data import Batch, Entropy, Ids, Logp, NeededMeasure
from groupwise.models.masked.masked_cell_predictor import MaskedCellPredictor, MaskedShape
from groupwise.models.masked.unmasking_actions import CellCommit, DrawnKnobs, decode_masked
from groupwise.models.masked.unmasking_schedule import UnmaskingSchedulePolicy, UnmaskingSettings
from groupwise.models.token_sampling import logprob_dtype

__all__ = ["MaskedPolicy"]


class MaskedPolicy(nn.Module):
    """A network that predicts masked cells, and the schedule that chooses how cells are revealed. It is a `Policy`.

    A trained token is the commit of a symbol, a draw from the softmax of its cell's logits over the temperature of the
    step, or the knobs of a step, a draw from Gaussians. No gradient passes from one to the other: a commit's
    temperature is a constant. Which cells are kept belongs to the environment.
    """

    recompute = compiled = False

    def __init__(self, shape: MaskedShape, unmask: UnmaskingSettings = UnmaskingSettings()) -> None:  # noqa: B008
        super().__init__()
        self.shape = shape
        self.predictor = MaskedCellPredictor(shape)
        self.schedule = UnmaskingSchedulePolicy(unmask)

    @property
    def unmask(self) -> UnmaskingSettings:
        return self.schedule.unmask

    def set_unmask(self, unmask: UnmaskingSettings) -> None:
        """Unmask in this way. A schedule with another start begins there; else it keeps its means and deviations."""
        if unmask == self.unmask:
            return
        stored, self.schedule = self.schedule, UnmaskingSchedulePolicy(unmask).to(self.schedule.mean_change)
        if unmask.continues(stored.unmask):
            scale = stored.unmask.schedule_lr_factor / unmask.schedule_lr_factor if unmask.schedule_lr_factor else 0.0
            for parameter, trained in zip(self.schedule.parameters(), stored.parameters(), strict=True):
                parameter.data.copy_(trained.data * scale)

    @property
    def dtype_device(self) -> dict[str, Any]:
        """The device and the dtype of log-probs: at least float32."""
        weight = self.schedule.mean_change
        return {"device": weight.device, "dtype": logprob_dtype(weight.dtype)}

    def words(self, prompts: Sequence[Ids]) -> Int[Tensor, "n prompt_length"]:
        """The words of prompts as rows."""
        return torch.tensor(prompts, dtype=torch.long, device=self.dtype_device["device"]).view(
            -1, self.shape.prompt_length
        )

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any]
    ) -> dict[NeededMeasure, Float[Tensor, " n"]]:
        """Log-probs, also of side models, and entropies per trained token. `Usage` for another measure."""
        for measure in wanted:
            if not isinstance(measure, Logp | Entropy) or getattr(measure, "view", ""):
                raise Usage(
                    f"a masked policy does not compute the measure {measure}",
                    fix="remove the component that needs it: a masked policy has log-probs and entropies",
                )
        actions = TrainedUnmaskingTokens.of(batch, self)
        models = {"policy": self, **side_models}
        names = {measure.model if isinstance(measure, Logp) else "policy" for measure in wanted}
        numbers: dict[str, tuple[Tensor, Tensor]] = {}
        for name in sorted(names):
            with torch.set_grad_enabled(name == "policy" and torch.is_grad_enabled()):
                numbers[name] = actions.logp_and_entropy(models[name])
        return {
            measure: numbers[measure.model][0] if isinstance(measure, Logp) else numbers["policy"][1].detach()
            for measure in wanted
        }


@dataclass(frozen=True, slots=True, eq=False)
class TrainedUnmaskingTokens:
    """The trained tokens of a batch: commits, and the knobs that the schedule drew, with what their log-probs need.

    A canvas of several commits is forwarded once: `commit_canvas_rows` is the canvas of each commit.
    """

    commit_token_indices: Int[Tensor, " c"]
    schedule_token_indices: Int[Tensor, " k"]
    canvases: Int[Tensor, "rows cells"]
    prompt_tokens: Int[Tensor, "rows prompt_length"]
    commit_canvas_rows: Int[Tensor, " c"]
    commit_cells: Int[Tensor, " c"]
    commit_symbols: Int[Tensor, " c"]
    commit_temperatures: Float[Tensor, " c"]
    schedule_token_steps: Int[Tensor, " k"]
    schedule_token_values: Float[Tensor, "k 2"]

    @classmethod
    def of(cls, batch: Batch, policy: MaskedPolicy) -> "TrainedUnmaskingTokens":
        at: dict[type, list[int]] = {CellCommit: [], DrawnKnobs: []}
        rows: dict[tuple[Ids, bytes], int] = {}
        canvases, row, cell, symbol, temperature, step, values = [], [], [], [], [], [], []
        for i, (s, t) in enumerate(zip(batch.sequences.index.tolist(), batch.index_in_sample.tolist())):
            sample = batch.samples[s]
            action = decode_masked(sample.actions[t])
            at[type(action)].append(i)
            if isinstance(action, DrawnKnobs):
                step.append(action.unmasking_step)
                values.append(action.knob_values.tolist())
                continue
            canvas = sample.context, action.canvas_before.tobytes()
            if canvas not in rows:
                rows[canvas] = len(rows)
                canvases.append(action.canvas_before.tolist())
            row.append(rows[canvas])
            cell.append(action.cell)
            symbol.append(sample.tokens[t] - policy.shape.first_commit)
            temperature.append(action.draw_temperature)
        dtype_device, long = policy.dtype_device, {"device": policy.dtype_device["device"], "dtype": torch.long}
        return cls(
            commit_token_indices=torch.tensor(at[CellCommit], **long),
            schedule_token_indices=torch.tensor(at[DrawnKnobs], **long),
            canvases=torch.tensor(canvases, **long).view(-1, policy.shape.cells),
            prompt_tokens=policy.words([words for words, _ in rows]),
            commit_canvas_rows=torch.tensor(row, **long), commit_cells=torch.tensor(cell, **long),
            commit_symbols=torch.tensor(symbol, **long),
            commit_temperatures=torch.tensor(temperature, **dtype_device),
            schedule_token_steps=torch.tensor(step, **long),
            schedule_token_values=torch.tensor(values, **dtype_device).view(-1, 2),
        )  # fmt: skip

    def logp_and_entropy(self, model: MaskedPolicy) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Log-prob and entropy of each token under a model. Modules that no token uses are not in the graph."""
        # A leaf: the learner runs backward for each microbatch, also for one that a mask emptied. That pass must reach
        # no weights, since AdamW moves weights with a gradient of 0 by their momentum and by weight decay.
        logp = torch.zeros(
            len(self.commit_token_indices) + len(self.schedule_token_indices),
            requires_grad=torch.is_grad_enabled(),
            **model.dtype_device,
        )
        entropy = torch.zeros_like(logp)
        if len(self.commit_token_indices):
            logits = model.predictor(self.canvases, self.prompt_tokens)[self.commit_canvas_rows, self.commit_cells]
            law = torch.log_softmax(logits.to(logp) / self.commit_temperatures[:, None], -1)
            logp = logp.index_copy(0, self.commit_token_indices, law.gather(1, self.commit_symbols[:, None])[:, 0])
            entropy = entropy.index_copy(0, self.commit_token_indices, -(law.exp() * law).sum(-1))
        if len(self.schedule_token_indices):
            logp = logp.index_copy(
                0,
                self.schedule_token_indices,
                model.schedule.log_density(self.schedule_token_steps, self.schedule_token_values),
            )
            entropy = entropy.index_copy(
                0, self.schedule_token_indices, model.schedule.entropy(self.schedule_token_steps)
            )
        return logp, entropy
