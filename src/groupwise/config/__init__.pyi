# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.config.packaged import find_recipe as find_recipe
from groupwise.config.packaged import given_recipe as given_recipe
from groupwise.config.recipe import Cluster as Cluster
from groupwise.config.recipe import Columns as Columns
from groupwise.config.recipe import Evaluate as Evaluate
from groupwise.config.recipe import ExtraTask as ExtraTask
from groupwise.config.recipe import Machine as Machine
from groupwise.config.recipe import Recipe as Recipe
from groupwise.config.recipe import Save as Save
from groupwise.config.recipe import WarmStart as WarmStart
from groupwise.config.trl_verl_names import FIELD_HINTS as FIELD_HINTS
from groupwise.config.trl_verl_names import OTHER_NAMES as OTHER_NAMES
from groupwise.config.trl_verl_names import other_name_fix as other_name_fix
from groupwise.config.trl_verl_names import verifier_fix as verifier_fix
from groupwise.config.user_code import Permissions as Permissions
