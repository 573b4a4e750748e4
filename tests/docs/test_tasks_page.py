"""The page on tasks: its commands run, and its table of published sets equals the package's."""

import json
from pathlib import Path

from groupwise.core import plain_name
from groupwise.models import Decoder, DecoderShape, write_model
from groupwise.tasks.published_sets import PRESETS, PublishedSet
from groupwise.verifiers import usual_verifier
from tests.docs.test_pages import HOME, blocks
from tests.docs.warm_shell import run
from tests.models.test_templates import trained
from tests.tasks.published import gsm8k

PAGE = "docs/tasks.md"


def write_inputs(where: Path) -> None:
    """The model directory and the files of GSM8K that the page assumes."""
    tokenizer = trained()
    sizes = {
        "hidden_size": 16,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "mlp_width": 32,
        "max_positions": 512,
    }
    shape = DecoderShape(
        vocabulary_size=tokenizer.backend_tokenizer.get_vocab_size(),
        model_family="qwen2",
        qkv_bias=True,
        tied_embeddings=True,
        **sizes,
    )
    write_model(Decoder.new(shape, 0), where / "my-model", tokenizer=tokenizer)
    (where / "gsm8k-files").mkdir()
    for split, names in (("train", ("Ada", "Bo", "Cem")), ("test", ("Dee", "Eve"))):
        lines = "".join(json.dumps(row) + "\n" for row in gsm8k(names))
        (where / "gsm8k-files" / f"{split}.jsonl").write_text(lines)


def test_the_page_runs(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    for block in blocks(PAGE):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "sh":
            run(block.text, tmp_path)
        elif block.language == "console":
            command, _, output = block.text.partition("\n")
            assert run(command[2:], tmp_path) == output
    mixed, gsm = (json.loads((r / "run.json").read_text()) for r in sorted((tmp_path / "runs").iterdir(), reverse=True))
    assert [d["source"] for d in mixed["data"]] == ["sums.jsonl", "times.jsonl"]
    assert [(d["training"], d["held_out"]) for d in gsm["data"]] == [(3, 0), (0, 2)] and list(gsm["templates"]) == [
        "chat"
    ]


def test_the_table_of_published_sets() -> None:
    text = (HOME / PAGE).read_text()
    table = text.partition("<!-- presets -->\n")[2].partition("<!-- /presets -->")[0].splitlines()[2:]

    def problems(name: str) -> str:
        preset = PRESETS[name]
        if not preset.training_split:
            return "all held out"
        return f"{preset.training_split}, {preset.held_out_split or 'a tenth'} held out"

    def verifier(name: str) -> str:
        return plain_name(type(usual_verifier(PublishedSet(name))).__name__)

    rows = (
        f"`{n}` | `{p.hub_name}` | `{verifier(n)}` | `{p.default_template}` | {problems(n)}" for n, p in PRESETS.items()
    )
    assert table == [f"| {row} |" for row in rows]
