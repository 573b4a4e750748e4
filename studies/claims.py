"""The command that measures claims, and writes their page: `python -m studies.claims noisy-best --minutes 30`.

It makes the runs until a look decides, and continues where it stopped. Without a name it lists the claims.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.atlas.running import run_all

from groupwise.certificates.studies import StudyRunResult, is_stale, read_results
from groupwise.core import counted
from groupwise.evaluation.seed_verdicts import LOOK_LEVEL, LOOKS
from studies import admission, engine_kl, leave_one_out, long_answers, noisy_logprobs, sparse_mixture, tailed_sums
from studies.claim import Claim, state
from studies.forest import VERDICTS
from studies.pages import filled
from studies.rates import in_words
from studies.running import HOME
from studies.study import Estimate, Results, average, table

FILES = (noisy_logprobs, long_answers, tailed_sums, engine_kl, admission, sparse_mixture, leave_one_out)
CLAIMS = {claim.name: claim for file in FILES for claim in file.CLAIMS}
RESULTS, PAGE = Path("studies/claims.jsonl"), Path("docs/studies/claims.md")


def main(argv: Sequence[str] | None = None, home: Path = HOME) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.claims", description="Measure a claim.")
    parser.add_argument("claim", nargs="?", help=f"one of {', '.join(CLAIMS)}; without one, print what is known of all")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="start no run after N minutes")
    a = parser.parse_args(argv)
    if a.claim is not None and a.claim not in CLAIMS:
        parser.error(f"no claim is called {a.claim!r}: take {', '.join(CLAIMS)}")
    complete = a.claim is None or measure(CLAIMS[a.claim], home, time.monotonic() + 60 * a.minutes)
    results = fresh_results(home)
    page = home / PAGE
    page.write_text(filled(page.read_text("utf-8"), blocks(results)), encoding="utf-8")
    for claim in CLAIMS.values():
        print(f"{claim.name}: {state(claim, results)}")
    return int(not complete)


def measure(claim: Claim, home: Path, until: float) -> bool:
    """Make a claim's runs until a look decides. Returns whether one did; else a run failed, or the time is over."""
    metrics, use = claim.metrics, [HOME / path for path in claim.use]
    (home / RESULTS).parent.mkdir(parents=True, exist_ok=True)
    runs = claim.next_runs(fresh_results(home))
    while runs:
        trials, folder = dict.fromkeys(runs, metrics), home / "runs" / "studies"
        for trial, result in run_all(trials, home / RESULTS, folder, HOME, until, claim.bases, use):
            text = f"{result.cpu_seconds:.0f} s" if isinstance(result, StudyRunResult) else f"failed: {result!r}"
            print(f"{claim.name} seed {trial.seed} {' '.join(trial.settings)}: {text}", flush=True)
        left = claim.next_runs(fresh_results(home))
        if left and set(left) & set(runs):
            return False
        runs = left
    return True


def fresh_results(home: Path) -> Results:
    """The stored results whose code has not changed since."""
    return {trial: result for trial, result in read_results(home / RESULTS).items() if not is_stale(result)}


def blocks(results: Results) -> dict[str, str]:
    """The table of the page."""
    rows = [
        (f"`{claim.name}`", claim.text, f"{claim.sides[0].label} - {claim.sides[1].label}", claim.least,
         " / ".join(f"{rate:g}" for rate in claim.rates), taken(claim, results), beside(claim, results),
         state(claim, results))
        for claim in CLAIMS.values()
    ]  # fmt: skip
    head = ("name", "claim", "difference", "least that counts", "rates", "taken", "beside", "state")
    return {"claims": f"{counts(results)}\n\n{table(head, rows)}"}


def counts(results: Results) -> str:
    """How many claims have each verdict. One that is not admitted, or has not enough runs, is undecided.

    One that compares methods at one rate is no verdict between them, as in the studies.
    """
    found = [claim.judgement(results) for claim in CLAIMS.values() if not claim.has_one_rate]
    single = len(CLAIMS) - len(found)
    words = Counter(judgement.word for judgement in found)
    listed = ", ".join(f"{words[word]} {word}" for word in VERDICTS if words[word])
    open_, unmade = (sum(test(x) for x in found) for test in (lambda x: not x.is_final, lambda x: not x.seeds))
    unfinished = f"{open_} have not enough runs, {unmade} of them none"
    return f"{counted(len(found), 'claim')}: {listed}; {unfinished}. Beside them {single} at one rate."


def taken(claim: Claim, results: Results) -> str:
    """The rate of each side, with others that the tuning seeds do not separate, and bounds that are tuned.

    Empty before the tuning runs.
    """
    rates = [in_words(claim.left(side, results)) for side in (0, 1) if len(claim.rates) > 1]
    if not all(rates):
        return ""
    if len(claim.bounds) > 1 and (choice := claim.choice(0, results)):
        rates[0] += f" with {' / '.join(line.rpartition(' = ')[2] for line in choice[0])}"
    return ", ".join(rates)


def estimate(claim: Claim, results: Results) -> Estimate | None:
    """The difference of a claim over the seeds of its judgement; None before the first look."""
    seeds = claim.judgement(results).seeds
    differences, bases = claim.differences(results)[:seeds], [run.base for run, _ in claim.pairs(results)][:seeds]
    if seeds < LOOKS[0]:
        return None
    return Estimate(tuple(differences), claim.least, LOOK_LEVEL, tuple(bases), stale=False)


def beside(claim: Claim, results: Results) -> str:
    """The mean of each metric beside the claim, of the first side and of the second, over its fresh seeds.

    Before them how much the mechanism had to do, and how much is needed.
    """
    pairs = list(claim.pairs(results))[: len(claim.differences(results))]
    texts = []
    if claim.acted:
        metric, least = claim.acted
        measured = f" {claim.had_to_act(results):.2g}," if pairs else ""
        texts.append(f"acted:{measured} at least {least:g} of `{metric}`")
    for metric in claim.beside if pairs else ():
        values = (average(claim.mean(results[pair[side]], metric) for pair in pairs) for side in (0, 1))
        texts.append(f"{metric.rpartition('/')[2]} {' / '.join(f'{x:.2g}' for x in values)}")
    return ", ".join(texts)


if __name__ == "__main__":
    sys.exit(main())
