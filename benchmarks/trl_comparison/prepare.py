"""Write the inputs of both systems: a Hugging Face model directory, and the prompts in the order of their draws.

python -m benchmarks.trl_comparison.prepare b
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from benchmarks.trl_comparison.paths import ROOT, model_of, problems_of, prompts_of
from benchmarks.trl_comparison.regimes import ALL_REGIMES, Net, Regime
from benchmarks.trl_comparison.run_groupwise_stored import recipe_of
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from groupwise.config.recipe import Machine
from groupwise.config.user_code import UserCode
from groupwise.data import Task
from groupwise.models import Decoder, DecoderShape, Tokenizer, read_tokenizer, write_model
from groupwise.rollout import Shuffled
from groupwise.tasks import named_task
from groupwise.training.build_run import build

PAD, END = "<pad>", "<end>"
MOST = 100
"""Iterations for which prompts are written."""


def prepare(regime: Regime, seed: int = 0) -> None:
    """Write the files of a regime that do not exist yet."""
    home = ROOT / regime.letter
    home.mkdir(parents=True, exist_ok=True)
    if regime.net is not None:
        written = home / "net.json"
        if not written.is_file() or json.loads(written.read_text()) != asdict(regime.net):
            write_net(regime.net, model_of(regime))
            written.write_text(json.dumps(asdict(regime.net)))
        Path(problems_of(regime)).write_text("".join(random_problems(regime)))
    if regime.columns:
        prompts_of(regime, seed).write_text("".join(rows_in_order(regime, seed)))
        return
    tokenizer = read_tokenizer(model_of(regime))
    task: Task = named_task(problems_of(regime)).build(tokenizer.encode)
    draws = Shuffled().draw(Shuffled().init(task, seed), task, MOST * regime.prompts, regime.group)[1]
    if regime.net is not None:
        assert all(len(draw.prompt.token_ids) == regime.prompt_tokens for draw in draws)
    lines = [json.dumps({"prompt": d.prompt.text, "answer": d.prompt.row["answer"]}) + "\n" for d in draws]
    prompts_of(regime, seed).write_text("".join(lines))


def write_net(net: Net, path: Path) -> None:
    """Write a decoder with random weights and a tokenizer with one word per id: text gives exactly the intended ids."""
    shape = DecoderShape(**asdict(net), qkv_bias=net.model_family == "qwen2", tied_embeddings=True)
    words = {PAD: 0, END: 1} | {f"t{i}": i for i in range(2, net.vocabulary_size)}
    fast = Fast(models.WordLevel(words, unk_token=""))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END)])
    write_model(Decoder.new(shape, seed=0), path, tokenizer=Tokenizer.of(fast, [words[END]]))


def random_problems(regime: Regime) -> list[str]:
    """Rows of a problem file: prompts of the regime's length in random words."""
    assert regime.net is not None
    random = Random(f"problems {regime.letter}")
    rows = [
        [f"t{random.randrange(2, regime.net.vocabulary_size)}" for _ in range(regime.prompt_tokens)]
        for _ in range(20 * regime.prompts)
    ]
    if regime.columns:
        return stored_answers(regime, rows, random)
    return [json.dumps({"prompt": " ".join(row), "answer": "0"}) + "\n" for row in rows]


def stored_answers(regime: Regime, prompts: list[list[str]], random: Random) -> list[str]:
    """Rows with answers of the regime's lengths, in random words. The end token, which both systems add, is one more.

    An answer begins with a space, because TRL encodes it behind its prompt.
    """
    assert regime.net is not None and regime.lengths is not None
    lengths, last = iter(regime.lengths.of(0, regime.group * len(prompts))), regime.net.vocabulary_size
    lines = []
    for prompt in prompts:
        answers = ["".join(f" t{random.randrange(2, last)}" for _ in range(next(lengths) - 1)) for _ in regime.columns]
        lines.append(json.dumps({"prompt": " ".join(prompt), **dict(zip(regime.columns, answers))}) + "\n")
    return lines


def rows_in_order(regime: Regime, seed: int) -> list[str]:
    """The rows in the order in which a run of Groupwise with this seed draws them."""
    recipe = recipe_of(regime, iterations=MOST, seed=seed, machine=Machine())
    task, curriculum = build(recipe, UserCode()).task, recipe.method.curriculum
    draws = curriculum.draw(curriculum.init(task, seed), task, MOST * regime.prompts, regime.group)[1]
    assert all(len(draw.prompt.token_ids) == regime.prompt_tokens for draw in draws)
    rows = [{"prompt": d.prompt.text} | {column: d.prompt.row[column] for column in regime.columns} for d in draws]
    return [json.dumps(row) + "\n" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model and the prompts of a regime.")
    parser.add_argument("regime", choices=ALL_REGIMES, metavar="REGIME", help="its letter")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    prepare(ALL_REGIMES[a.regime], a.seed)


if __name__ == "__main__":
    main()
