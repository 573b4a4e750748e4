# /// script
# dependencies = ["openai==3.57.0"]
# ///
"""OpenAI's client: a question, and the answer checked in a second turn. The reward is 1 for a right answer."""

import json
import os

from openai import OpenAI

row = json.loads(os.environ["GROUPWISE_ROW"])
client = OpenAI()  # it reads OPENAI_BASE_URL and OPENAI_API_KEY
messages = [{"role": "user", "content": row["question"]}]
first = client.chat.completions.create(model="policy", messages=messages).choices[0].message
messages += [first, {"role": "user", "content": "Check it, and write the number again."}]
answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
print(json.dumps({"reward": float(row["answer"] in answer)}))
