# /// script
# dependencies = ["verifiers==0.4.0"]
# ///
"""One task of an installed environment of verifiers, by its number: its prompt, its tools, its rewards.

The column `index` of a row is the task's number. The arguments are the ids of the taskset and, if wanted, of a harness:
verifiers_agent.py sums_taskset
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

sys.path.append(str(Path(__file__).parent / "verifiers_tasksets"))  # an installed taskset needs no path


async def episode(index: int, taskset: str, harness: str = "chat_harness") -> vf.Episode:
    """Run one episode, with the policy as the model of each agent that names no other one."""
    seat = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
    environment = load_environment(resolve_env_config({"taskset": {"id": taskset}, "agent": seat}))
    (task,) = environment.taskset.include(idx=[str(index)])
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with environment.serving():
        return await environment.run_episode(task, vf.ModelContext("policy", client))


done = asyncio.run(episode(json.loads(os.environ["GROUPWISE_ROW"])["index"], *sys.argv[1:3]))
for error in (error for trace in [done, *done.traces] for error in trace.errors):
    print(f"{error.type}: {error.message}", file=sys.stderr)
if not done.ok:
    sys.exit(1)  # the episode has no reward
print(json.dumps({"reward": sum(trace.reward for trace in done.traces)}))
