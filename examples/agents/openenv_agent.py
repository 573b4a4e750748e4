# /// script
# dependencies = ["openenv==0.10.0"]
# ///
"""An environment of OpenEnv in its own process: an answer is the action, and what comes back is the next message.

`openenv init echo_env` writes OpenEnv's environment that echoes, and `uvicorn server.app:app --port 8000` starts it, in
its directory. The argument of this agent is its address: openenv_agent.py http://127.0.0.1:8000
"""

import json
import os
import sys

from openai import OpenAI
from openenv.core import GenericEnvClient

TURNS = 2

row = json.loads(os.environ["GROUPWISE_ROW"])
client, messages, reward = OpenAI(), [{"role": "system", "content": row["task"]}], 0.0
with GenericEnvClient(base_url=sys.argv[1]).sync() as environment:
    state = environment.reset()
    for _ in range(TURNS):
        messages.append({"role": "user", "content": state.observation["echoed_message"]})
        answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        messages.append(answer)
        state = environment.step({"message": answer.content})
        reward += state.reward
print(json.dumps({"reward": reward}))
