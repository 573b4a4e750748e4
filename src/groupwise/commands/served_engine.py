"""The engine of `groupwise serve`: the field `engine` of a recipe, in its words, with its checks and their advice."""

from collections.abc import Sequence

from groupwise.commands.unknown_options import named_fields
from groupwise.config.recipe_toml import read_data
from groupwise.config.toml import overridden
from groupwise.config.user_code import UserCode
from groupwise.core import Usage, raise_all
from groupwise.engines import Native, Vllm


def served_engine(overrides: Sequence[tuple[str, str]]) -> Native:
    """The settings of `--engine` and `--engine.FIELD`: a `Native` or a `Vllm`.

    `Usage` for another field of a recipe, for another kind of engine, and for a setting that only a run reads.

    >>> served_engine([("engine", "Vllm"), ("engine.tensor_parallel_size", "2")]).tensor_parallel_size
    2
    """
    overrides = named_fields(overrides)
    for path, _ in overrides:
        if path.partition(".")[0] != "engine":
            what = f"serve has no option --{path}"
            raise Usage(what, fix="of a recipe it takes the engine alone: --engine Vllm, --engine.max_num_seqs 64")
    recipe, problems = read_data(overridden({}, overrides), UserCode(), only=["engine"])
    raise_all(problems)
    assert recipe is not None, "it has no problems"
    engine = recipe.engine
    if type(engine) not in (Native, Vllm):
        raise Usage(f"no {type(engine).__name__} is served", fix="serve has the engines Native and Vllm: --engine Vllm")
    assert isinstance(engine, Native)
    if unread := sorted(engine.changed_settings.keys() - {*engine.served_settings}):
        named, own = f"engine.{unread[0]}", {"replicas": "--replicas N", "devices": "--device cuda:N"}
        fix = f"leave it out; {own[unread[0]]} is serve's" if unread[0] in own else "leave it out: it is the run's"
        raise Usage(f"serve does not read {named}", fix=fix)
    return engine
