"""No text of a model is evaluated, parsed by a library that evaluates, or used as a template outside the sandbox.

Read from the source: each call and import that could do so stands in `ALLOWED` with its reason, or fails here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import groupwise

SOURCE = Path(groupwise.__file__).parent
ALGEBRA = (
    "numeric_equality", "latex_parser", "noncommuting_products", "expression_trees", "values_at_point", "math_verify",
    "dr_grpo_grader",
)  # fmt: skip
INSIDE = ("sandbox/server.py", *(f"verifiers/math/{name}.py" for name in ALGEBRA))
"""Run inside the sandbox. No other file of the package imports them: that is tested, too."""
ALLOWED = {
    ("core/lazy_imports.py", "ast.literal_eval(match[1])"): "the lists of names in this package's own files",
    (
        "commands/completion.py",
        "BASH.format(install=INSTALL[shell], cases=cases, **lists)",
    ): "the names of this package's commands and methods",
    ("__init__.py", "import_module(room)"): "a room of this package, by the names in its files",
    ("core/lazy_imports.py", "import_module(name)"): "a file of this package, by the table of its room",
    (
        "verifiers/worker.py",
        "exec(compile(spec['source'], spec['file'], 'exec'), module.__dict__)",
    ): "the user's own file",
    ("verifiers/worker.py", "compile(spec['source'], spec['file'], 'exec')"): "the user's own file",
    ("config/user_code.py", "exec(compile(source, module.__file__, 'exec'), vars(module))"): "a file named by --use",
    ("config/user_code.py", "compile(source, module.__file__, 'exec')"): "a file named by --use",
    ("models/decoder/decoder.py", "torch.compile(half, dynamic=True)"): "a function of our own",
    ("training/build_run.py", "torch.compile(torch.nn.functional.silu)"): "a function of torch",
    ("models/decoder/transformers_model.py", "causal.eval()"): "a module's mode",
    ("models/classifier/scoring_model.py", "module.to(device).requires_grad_(False).eval()"): "a module's mode",
    (
        "models/template_worker.py",
        "environment.from_string(source)",
    ): "a model directory's template, in Jinja's sandbox",
    ("methods/published_methods.py", "import_module(module)"): "a file of this package, by the table of its room",
    ("config/registry.py", "importlib.import_module(f'groupwise.{room}')"): "files of the package",
    ("core/lazy_imports.py", "import_module(f'groupwise.{home}')"): "a file of the package, by the table of its room",
    ("tasks/hinted_sums.py", "PROMPT_FORMS[form].format(prompt=problem, **values)"): "literal templates of the package",
    ("engines/native/paged_batch.py", "at % PAGE"): "a remainder",
    ("engines/native/paged_cache.py", "at % PAGE"): "a remainder",
    ("models/decoder/varlen_attention.py", "head_dim % HEAD_MULTIPLE"): "a remainder",
    ("runs/trackers.py", "importlib.import_module(module)"): "the package of a tracker",
    (
        "models/decoder/transformers_files.py",
        "import_module(f'{library}.utils.logging')",
    ): "of transformers or diffusers",
    ("report/run_warnings.py", "description.format(bound=bound)"): "a literal template of the package",
    ("verifiers/llm_judge.py", "PROMPT.format(fence=fence, **texts)"): "a literal template",
}
CALLS = (
    *("eval", "exec", "compile", "__import__", "literal_eval", "run_path", "run_module", "runsource"),
    *("parse_expr", "sympify", "nsimplify", "simplify", "lambdify", "parse_latex", "latex2sympy", "latex_to_text"),
    *("format", "format_map", "vformat", "substitute", "safe_substitute", "from_string"),
)
LIBRARIES = ("math_verify", "sympy", "latex2sympy2", "latex2sympy2_extended", "pylatexenc", "antlr4", "mpmath")
PURE = ("re.compile", "platform.python_version")
"""Names that only look alike."""


def findings(tree: ast.AST) -> Iterator[str]:
    """What may evaluate text, or take it as a template, as it is written."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
                literal = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
                if not literal and ast.unparse(node.func) not in PURE:
                    yield ast.unparse(node)
            case ast.BinOp(op=ast.Mod(), left=left, right=right) if not _numbers(left, right):
                yield ast.unparse(node)
            case ast.Import(names=names) if any(alias.name.split(".")[0] in LIBRARIES for alias in names):
                yield ast.unparse(node)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in LIBRARIES:
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
                if not isinstance(first, ast.Constant) or str(first.value).split(".")[0] in LIBRARIES:
                    yield ast.unparse(node)


def _numbers(left: ast.expr, right: ast.expr) -> bool:
    """Whether `left % right` is arithmetic, or a literal template."""
    if isinstance(left, ast.Constant | ast.BinOp):
        return True
    if isinstance(right, ast.Constant | ast.JoinedStr):
        return isinstance(right, ast.Constant) and isinstance(right.value, int)
    return not isinstance(right, ast.Tuple | ast.Dict) and ast.unparse(right) in REMAINDERS


REMAINDERS = (
    "ranks", "ranks.lanes", "PROBLEMS", "self.kv_heads", "many", "few", "vocabulary", "every", "settings.save_every",
    "n",
)  # fmt: skip
REMAINDERS += (
    "host_devices",
    "len(indices)",
    "len(self.values)",
    "sizes['heads']",
    "len(streams)",
    "len(self.tasks[i])",
    "(minibatches := self.method.minibatches)",
    "SEEDS",
    "packed",
    "self.every",
    "BLOCK",
    "2 ** 32",
    "size",
    "self.size",
    "shape.kv_heads",
)
"""What the package divides by: numbers, by their names."""


def outside() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if str(path.relative_to(SOURCE)) not in INSIDE]


def test_nothing_outside_the_sandbox_evaluates_text_or_takes_it_as_a_template():
    found = {(str(p.relative_to(SOURCE)), text) for p in outside() for text in findings(ast.parse(p.read_text()))}
    assert not found - ALLOWED.keys(), "each of these runs text, or needs a reason in ALLOWED"
    assert not ALLOWED.keys() - found, "these are gone: take them out of ALLOWED"


def test_what_runs_in_the_sandbox_is_imported_by_no_other_file():
    modules = {"groupwise." + path.removesuffix(".py").replace("/", ".") for path in INSIDE}
    for path in outside():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not modules & {alias.name for alias in node.names}, f"{path}: {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
                assert not modules & names, f"{path}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)", "builtins.exec(text)", "sympy.sympify(text)", "sympy_parser.parse_expr(text)",
        "ast.literal_eval(match[1])", "text.format(x)", "template % value", "template % (a, b)", "template % {'a': 1}",
        "import sympy", "from math_verify import parse", "from sympy.parsing import latex",
        "importlib.import_module('sympy')", "importlib.import_module(name)", "Environment().from_string(text)",
    ],
)  # fmt: skip
def test_each_way_is_seen(line: str):
    assert list(findings(ast.parse(line)))
