"""The loss and its gradient by loops over tokens in Python floats, with hand-written derivatives and no autograd.

It reads the parts' constants and shares none of their code. It leaves out the log-ratio clamps, which are not reached.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.data import Batch, Logp, name_of
from groupwise.objective import Objective

Jacobian = list[list[float]]


@dataclass
class Row:
    """One answer: its tokens' numbers, their indices in the batch, and its group."""

    at: list[int]
    group: int
    budget: int
    logp: list[float]
    old: list[float]
    engine: list[float]
    advantage: list[float]
    reference: list[float]

    def __len__(self) -> int:
        return len(self.at)


def rows(batch: Batch) -> list[Row]:
    reference = batch.measures.get(Logp("reference"))

    def values(column: Any, at: Sequence[int]) -> list[float]:
        return [float(column.detach()[i]) for i in at] if column is not None else []

    result = []
    sample_of = batch.sequences.index.tolist()
    for s in range(len(batch)):
        at = [i for i, o in enumerate(sample_of) if o == s]
        columns = [values(c, at) for c in (batch.logp, batch.logp_old, batch.logp_engine, batch.advantage, reference)]
        result.append(Row(at, int(batch.groups.index[s]), batch.max_new_tokens, *columns))
    return result


def oracle(objective: Objective, step: Batch) -> tuple[float, list[float]]:
    """The loss of a whole step, and its derivative with respect to every token's log-prob."""
    table = rows(step)
    loss, gradient = 0.0, [0.0] * step.tokens
    for row in table:
        value, jacobian = surrogate(objective.surrogate, row)
        for t in range(len(row)):
            share = share_of(name_of(objective.aggregate), row, table)
            weight = math.prod(weight_of(w, row, t) for w in objective.weights)
            loss -= share * weight * value[t]
            for k in range(len(row)):
                gradient[row.at[k]] -= share * weight * jacobian[t][k]
            for p in objective.penalties:
                cost, slope = penalty(p, row, t)
                loss += share * cost
                gradient[row.at[t]] += share * slope
    return loss, gradient


def share_of(aggregate: str, row: Row, table: Sequence[Row]) -> float:
    live = [r for r in table if len(r)]
    match aggregate:
        case "token_mean":
            return 1 / sum(len(r) for r in table)
        case "sequence_mean":
            return 1 / len(live) / len(row)
        case "group_mean":
            mates = [r for r in live if r.group == row.group]
            return 1 / len({r.group for r in live}) / len(mates) / len(row)
        case "sequence_sum":
            return 1 / len(table)
        case "budget_mean":
            return 1 / len(table) / row.budget
    raise AssertionError(aggregate)


def ratio(part: Any, row: Row) -> tuple[list[float], Jacobian]:
    """Every token's ratio, and its derivatives with respect to all log-probs of the row."""
    n = len(row)
    gap = [a - b for a, b in zip(row.logp, row.old)]
    match name_of(part):
        case "token_ratio":
            r = [math.exp(g) for g in gap]
            return r, [[r[t] if t == k else 0.0 for k in range(n)] for t in range(n)]
        case "sequence_ratio":
            s = math.exp(math.fsum(gap) / n) if n else 0.0
            return [s] * n, [[s / n] * n for _ in range(n)]
        case "sequence_ratio_per_token":
            s = math.exp(math.fsum(gap) / n) if n else 0.0
            return [s] * n, [[s if t == k else 0.0 for k in range(n)] for t in range(n)]
        case "sequence_product":
            s = math.prod(math.exp(g) for g in gap)
            return [s] * n, [[s] * n for _ in range(n)]
        case "PowerMeanRatio":
            up = [a >= 0 for a in row.advantage]
            free = [g <= part.log_high if u else g >= -part.log_low for g, u in zip(gap, up)]
            near = [min(g, part.log_high) if u else max(g, -part.log_low) for g, u in zip(gap, up)]
            power = [math.exp(part.p * d) for d in near]
            if part.p:
                g = (sum(power) / n) ** (1 / part.p) if n else 0.0
            else:
                g = math.prod(math.exp(d) for d in near) ** (1 / n) if n else 0.0
            slope = [g * p / sum(power) if f else 0.0 for p, f in zip(power, free)]
            return [g] * n, [slope] * n
    raise AssertionError(part)


def surrogate(part: Any, row: Row) -> tuple[list[float], Jacobian]:
    n = len(row)
    if name_of(part) == "policy_gradient":
        slope = [[row.advantage[t] if t == k else 0.0 for k in range(n)] for t in range(n)]
        return [a * x for a, x in zip(row.advantage, row.logp)], slope
    r, dr = ratio(part.ratio, row)
    value, jacobian = [], []
    for t in range(n):
        a = row.advantage[t]
        match name_of(part):
            case "Clip":
                if a > 0 and r[t] > 1 + part.high:
                    value.append((1 + part.high) * a)
                    jacobian.append([0.0] * n)
                elif a < 0 and r[t] < 1 - part.low:
                    value.append((1 - part.low) * a)
                    jacobian.append([0.0] * n)
                else:
                    value.append(r[t] * a)
                    jacobian.append([a * d for d in dr[t]])
            case "ClippedWeight":
                w = min(max(r[t], part.floor), part.cap)
                value.append(w * a * row.logp[t])
                jacobian.append([w * a if t == k else 0.0 for k in range(n)])
            case "UnclippedSurrogate":
                value.append(r[t] * a)
                jacobian.append([a * d for d in dr[t]])
            case "SoftGate":
                tau = part.tau_positive if a > 0 else part.tau_negative
                gate = 1 / (1 + math.exp(-tau * (r[t] - 1)))
                value.append(4 / tau * gate * a)
                jacobian.append([4 * gate * (1 - gate) * a * d for d in dr[t]])
            case other:
                raise AssertionError(other)
    return value, jacobian


def weight_of(part: Any, row: Row, t: int) -> float:
    rho = [math.exp(a - b) for a, b in zip(row.old, row.engine)]
    match name_of(part):
        case "TruncatedImportance":
            return min(rho[t], part.cap)
        case "SequenceTruncatedImportance":
            return min(math.prod(rho), part.cap)
        case "MaskedImportance":
            return rho[t] if part.floor <= rho[t] <= part.cap else 0.0
    raise AssertionError(part)


def penalty(part: Any, row: Row, t: int) -> tuple[float, float]:
    """A token's penalty and its derivative with respect to that token's log-prob."""
    r = math.exp(row.logp[t] - row.old[t])
    if name_of(part) == "EntropyBonus":
        return -part.coefficient * (r * (1 - row.logp[t]) - 1), part.coefficient * r * row.logp[t]
    x = row.reference[t] - row.logp[t]
    k3 = math.exp(x) - 1 - x
    match part.kl_estimator:
        case "k2":
            return part.coefficient * x * x / 2, -part.coefficient * x
        case "k3":
            return part.coefficient * k3, part.coefficient * (1 - math.exp(x))
        case "corrected":
            return part.coefficient * r * k3, part.coefficient * r * (k3 + 1 - math.exp(x))
    raise AssertionError(part)
