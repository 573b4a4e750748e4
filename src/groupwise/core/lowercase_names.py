"""The names of verifiers and tasks in lower case, as a recipe or a command line may write them."""

import re

__all__ = ["class_name", "plain_name"]


def class_name(plain: str) -> str:
    """The name of the class of a part that is named in lower case, as in `verifier = "math_dapo"`.

    >>> class_name("math_dapo"), class_name("MathDapo")
    ('MathDapo', 'MathDapo')
    """
    return "".join(word[:1].upper() + word[1:] for word in plain.split("_"))


def plain_name(name: str) -> str:
    """The name of a part's class in lower case, as `class_name` reads it.

    >>> plain_name("MathDrGrpo")
    'math_dr_grpo'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
