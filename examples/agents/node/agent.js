// OpenAI's client for Node: the same agent as openai_agent.py, with a streamed second answer.
import OpenAI from "openai";

const row = JSON.parse(process.env.GROUPWISE_ROW);
const client = new OpenAI(); // it reads OPENAI_BASE_URL and OPENAI_API_KEY
const messages = [{ role: "user", content: row.question }];
const first = await client.chat.completions.create({ model: "policy", messages });
messages.push(first.choices[0].message, { role: "user", content: "Check it, and write the number again." });
let answer = "";
for await (const part of await client.chat.completions.create({ model: "policy", messages, stream: true })) {
  answer += part.choices[0]?.delta?.content ?? "";
}
console.log(JSON.stringify({ reward: answer.includes(row.answer) ? 1 : 0 }));
