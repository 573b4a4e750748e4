# /// script
# dependencies = ["smolagents[openai]==1.26.0"]
# ///
"""The CodeAgent of smolagents, unchanged: it writes Python until it has an answer. The reward is 1 for a right one."""

import json
import os

from smolagents import CodeAgent, OpenAIModel

row = json.loads(os.environ["GROUPWISE_ROW"])
model = OpenAIModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = CodeAgent(tools=[], model=model, max_steps=row.get("steps", 4))
answer = agent.run(row["question"])
print(json.dumps({"reward": float(str(answer).strip() == row["answer"])}))
