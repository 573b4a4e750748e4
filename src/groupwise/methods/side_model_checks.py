"""Checks of a method's extra models: each critic has returns to learn, and each needed model is defined."""

from collections.abc import Iterable, Sequence

from groupwise.data import Credit, NeededMeasure, Return, Value, name_of, needs, side_models_of, with_fields
from groupwise.learner import SideModel, ValueModel


def value_targets(models: Sequence[tuple[str, SideModel]], credit: Credit) -> tuple[tuple[str, Credit], ...]:
    """For each value model (critic): the credit estimator, such as GAE, whose returns it learns.

    Raises ValueError if no component, or more than one, needs its values.
    """
    targets: list[tuple[str, Credit]] = []
    for name, model in models:
        if not isinstance(model, ValueModel):
            continue
        readers = [p for p in with_fields(credit) if Value(name) in getattr(p, "needs", ())]
        if model.target_credit is None and len(readers) != 1:
            what = f"the critic {name!r} has no unique target: {len(readers)} components of the credit need its values"
            raise ValueError(
                f'{what}\nset method.credit = {{ kind = "GAE", critic = "{name}" }}, '
                f"or method.models.{name}.target_credit"
            )
        targets.append((name, model.target_credit or readers[0]))
    return tuple(targets)


def check_side_models(models: Sequence[tuple[str, SideModel]], measures: Iterable[NeededMeasure]) -> None:
    """Raise ValueError if a needed model is undefined or of a wrong kind, or a critic's loss trains another one."""
    kinds = dict(models)
    for name, model in models:
        if isinstance(model, ValueModel) and needs(model.loss) and Return(name) not in needs(model.loss):
            what = f"the loss of the critic {name!r} trains another model"
            raise ValueError(f'{what}\nset method.models.{name}.loss.critic = "{name}"')
    for measure in sorted(measures, key=repr):
        for name in side_models_of([measure]):
            of_values = isinstance(measure, Value | Return)
            part = '{ kind = "ValueModel" }' if of_values else '"InitialPolicy"'
            fix = f"set method.models = {{ {name} = {part} }}"
            if name not in kinds:
                fix = fix if of_values else f"{fix}, or the component's coefficient to 0"
                raise ValueError(f"a component needs the model {name!r}, which method.models does not define\n{fix}")
            if isinstance(kinds[name], ValueModel) != of_values:
                what = f"a component needs {measure}, and the model {name!r} is of the kind {name_of(kinds[name])}"
                raise ValueError(f"{what}\n{fix}, or name another model")
