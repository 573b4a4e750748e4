"""A harness of verifiers that asks once and runs in the episode's own process.

The harness `null` of verifiers does the same with tools, in a process that `uv` makes ready over the network.
"""

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["ChatHarness"]


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """One request with the task's prompts."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        system, prompt = self.resolve_text_prompt(data)
        messages = [{"role": role, "content": text} for role, text in (("system", system), ("user", prompt)) if text]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
