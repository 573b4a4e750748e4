"""Each command, option, key of TOML, argument of Python and metric that a page prints exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.method_pages import method_page

from groupwise.commands.help_epilog import RECIPE_FIELDS
from groupwise.config.registry import methods
from groupwise.methods import reference_of
from groupwise.methods.families import method_files
from tests.docs.printed_names import absent_keys, absent_names, is_key

HOME = Path(__file__).parents[2]
FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "studies/**/*.md", "tests/README.md", "examples/**/*.md")
PAGES = {str(path.relative_to(HOME)): path for folder in FOLDERS for path in HOME.glob(folder)}
OTHERS = {
    "CHANGELOG.md": {"--rows", "coupling_unit"},  # renamed, as its item says; a declaration of a component
    "docs/cluster.md": {"--max-restarts", "--standalone"},  # of torchrun
    "docs/two-hosts.md": {
        "--max-restarts",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--rdzv-backend",
        "--rdzv-endpoint",
    },  # of torchrun
    "docs/coming-from.md": {"--path", "actor"},
    "docs/gpu.md": {"num_splits"},  # of torch
    "docs/install.md": {"--build-arg"},  # of docker
    "docs/library.md": {"AdamW(learning_rate=)"},  # answered there
    "docs/pictures.md": {"--random"},  # of tools.vision_models
    "docs/real-model.md": {"--no-deps"},  # of pip
    "docs/reward-models.md": {"grade"},  # an attribute of a function
    "docs/sockets.md": {"scope"},  # a declaration of a user's filter
    "docs/verifiers.md": {"grade"},
    "docs/why.md": {"--method.group_sise", "--optimiser.lr"},  # misspelled on purpose
    "tests/README.md": {"--only"},  # of tools.breaks
}
"""The names on a page that are no names of the package."""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`groupwise trian`, `groupwise train --iteration 3`", {"groupwise trian", "--iteration"}),
        ("```sh\ngroupwise eval run --method.objective.surrogate.hihg 1\n```", {"--method.objective.surrogate.hihg"}),
        ("""`--method.mask '[{ kind = "AlternatingRoleMask", role = 1 }]'`""", {"method.mask.role"}),
        ("```toml\nevaluate.steps = 3\n[method]\nbase = 'dapo'\n```", {"evaluate.steps"}),
        ("`form = 3`, `[save] evry = 2`", {"save.evry"}),
        ('`verifier = { kind = "Math", answer = "last" }`', {"verifier.answer"}),
        ('`penalties = [{ kind = "Kl" }]`', {"kind = Kl"}),
        ('`{ kind =\n"FeedbackTree", gama = 1 }`', {"method.strategy.gama"}),
        ("`--verifier noisy`, `--reward maths`, `--method GRPO`", {"verifier = noisy", "reward = maths"}),
        ("`gw.KL(form=3)`, `EMA(keep, every)`", {"KL(form=)", "EMA(keep)"}),
        ("```python\ngw.train(model=m, rewards=f)\ngw.trian()\n```", {"train(rewards=)", "gw.trian"}),
        ("```python\nfrom groupwise.data import Batch, Batsh\n```", {"groupwise.data.Batsh"}),
        ("`eval/accurcy`, `eval/accuracy`, `docs/methods`", {"eval/accurcy"}),
        ("`--FIELD 3`, `--sampling.*`, `--data.train_batch_size 3`, `template_arguments.think = 1`", set()),
        ("```python\nclass Mine:\n    leak: float\n```\n`--method.objective.surrogate.leak 3`", set()),
    ],
)
def test_an_absent_name_is_found(text: str, names: set[str]) -> None:
    assert absent_names(text) == names


def present(page: str) -> str:
    """A page without the changelog's list for users of earlier versions, which has both names of what was renamed."""
    text = PAGES[page].read_text()
    if page == "CHANGELOG.md":
        text = "".join(re.split(r"### If you used an earlier development version.*?(?=\n### )", text, flags=re.S))
    return text


@pytest.mark.parametrize("page", PAGES)
def test_each_name_on_a_page_exists(page: str) -> None:
    assert absent_names(present(page)) - OTHERS.get(page, set()) == set()


@pytest.mark.parametrize("method", method_files())
def test_each_name_on_the_page_of_a_method_exists(method: str) -> None:
    assert absent_names(method_page(method)) == set()


@pytest.mark.parametrize("method", method_files())
def test_each_setting_of_an_expected_effect_exists(method: str) -> None:
    effect = reference_of(methods()[method]).expected_effect
    settings = (*effect.settings, *effect.own_settings) if effect else ()
    assert [key for setting in settings for key in absent_keys(setting)] == []


def test_each_field_in_the_help_of_train_exists() -> None:
    listed = {f"{section}.{word}" for section, words in RECIPE_FIELDS.items() for word in words.split()}
    assert [path for path in listed if not is_key(path.removeprefix("(top)."))] == []


def texts_of_examples() -> Iterator[tuple[str, str]]:
    """Each example and recipe as a page: its code, its lines, and its comments."""
    for path in [*HOME.glob("examples/**/*.py"), *HOME.glob("examples/**/*.toml"), *HOME.glob("recipes/**/*.toml")]:
        kind = {".py": "python", ".toml": "toml"}[path.suffix]
        comments = re.findall(r"^# ?(.*)", path.read_text(), re.M)
        yield str(path.relative_to(HOME)), "\n".join([*comments, f"```{kind}", path.read_text().strip(), "```"])
    cells = json.loads((HOME / "examples/notebook.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    yield "examples/notebook.ipynb", "\n".join([*words, *(f"```python\n{code}\n```" for code in codes)])


def test_each_name_in_an_example_exists() -> None:
    found = {name: absent_names(text) for name, text in texts_of_examples()}
    assert len(found) > 30 and {name: names for name, names in found.items() if names} == {}
