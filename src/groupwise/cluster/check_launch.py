"""Checks that a recipe's launcher has something to start, or was given it."""

from groupwise.cluster.ray import library
from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.engines.remote.served_settings import Served

LOCAL = "--cluster.launch local"


def check_launch(recipe: Recipe) -> None:
    """`Usage` for engines or ranks that `cluster.launch` cannot start, or that it was not given.

    `MissingRequirement` without Ray, if it is the launcher.
    """
    launch, engine, ranks = recipe.cluster.launch, recipe.engine, recipe.cluster.ranks
    if launch == "local":
        return
    what = f"cluster.launch is {launch}"
    replicas = engine.replicas if isinstance(engine, Served) else 0
    if launch == "external":
        if replicas:
            fix = f"set engine.replicas = 0 and engine.addresses, or use {LOCAL}"
            raise Usage(f"{what}, but the run would start {replicas} engines itself", fix=fix)
        if ranks == 1 and not isinstance(engine, Served):
            fix = 'name engines: engine = { kind = "Served", replicas = 0, addresses = ["PORT"] }, or set cluster.ranks'
            raise Usage(f"{what}, but there are no addresses of engines, and one rank", fix=fix)
        return
    library()
    if ranks == 1 and not replicas:
        fix = f"use engines in other processes: --engine.kind Served; or {LOCAL}"
        raise Usage(f"{what}, but there is nothing to start: no replicas, and one rank", fix=fix)
