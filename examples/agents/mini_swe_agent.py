# /// script
# dependencies = ["mini-swe-agent==2.4.6"]
# ///
"""mini-swe-agent, unchanged, mends a repository of ten lines in a sandbox. The reward is the share of passing checks.

The sandbox is its own, over bubblewrap. Its model is litellm's, which reads OPENAI_BASE_URL and OPENAI_API_KEY.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ |= {
    "MSWEA_COST_TRACKING": "ignore_errors",  # the policy has no price
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # a request that is refused once is refused again
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices of the package: litellm asks no other host
}

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment, BubblewrapEnvironmentConfig
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return add(a, a)\n",
    "check.py": "from calc import add, double\n\nprint(sum([add(0, 0) == 0, add(2, 3) == 5, double(4) == 8]))\n",
}
CHECKS = 3

row = json.loads(os.environ["GROUPWISE_ROW"])
config = yaml.safe_load((builtin_config_dir / "mini_textbased.yaml").read_text())
settings = {name: config["agent"][name] for name in ("system_template", "instance_template")}
with tempfile.TemporaryDirectory() as directory:
    for name, text in FILES.items():
        Path(directory, name).write_text(text)
    offline = [*BubblewrapEnvironmentConfig().wrapper_args, "--unshare-net"]
    sandbox = BubblewrapEnvironment(cwd=directory, wrapper_args=offline, **config["environment"])
    model = LitellmTextbasedModel(model_name="openai/policy", **config["model"])
    DefaultAgent(model, sandbox, **settings, step_limit=row.get("steps", 8)).run(row["task"])
    passed = sandbox.execute({"command": "python3 check.py"})["output"].strip()
print(json.dumps({"reward": int(passed) / CHECKS if passed.isdecimal() else 0.0}))
