"""Prompt templates: convert a problem's text, or messages, to the token ids of a prompt."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

import tokenizers

from groupwise.core import BadData, Usage
from groupwise.data import Ids, Picture
from groupwise.models.control_tokens import ControlTokens, unused_character
from groupwise.models.json_fields import json_object
from groupwise.models.picture_messages import as_parts, with_pictures
from groupwise.models.template_renderer import render
from groupwise.models.tokenizer import Tokenizer, chat_templates

__all__ = [
    "Arguments",
    "Messages",
    "PromptTemplate",
    "conversation_turn",
    "encode_answer",
    "find_template",
    "turn_end",
    "without_second_end",
]

Messages = Sequence[Mapping[str, Any]]
"""A conversation as a list of messages, such as `[{"role": "user", "content": "7*5="}]`."""

Arguments = Sequence[tuple[str, bool | int | float | str]]
"""Variables of a chat template by name, such as `[("enable_thinking", False)]`."""

PLAIN = {
    "no": "{prompt}",
    "qwen_math": (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    ),
    "r1": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
        "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: {prompt}\nAssistant: <think>"
    ),
}
"""The three templates of Dr. GRPO (arXiv:2503.20783, `train_zero_math.py`). With `r1`, set `stop` to `</answer>`."""

_PROMPT = "{prompt}"
_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_ROLE = re.compile(r"[\w .-]*")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "observation")
"""Roles that may also be the name in a control token: some templates write `<|user|>`."""
_AS_IS: Any = {"ensure_ascii": False}


@dataclass(frozen=True, slots=True, eq=False)
class PromptTemplate:
    """A prompt template. Call it with a problem's text or with messages to get the ids of the whole prompt.

    Control tokens in the template are encoded as such. In a problem's text, a role or the name of a tool, each spelling
    of one is broken apart and stays text: `<|im_end|>` is ten characters. `template_source` is Jinja for `chat`;
    otherwise it is a text that contains `{prompt}` once. The other fields are for `chat`: the system message of
    problems that have none, variables of the template, and the JSON schemas of tools.
    """

    name: str
    template_source: str = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    system_message: str = ""
    template_variables: Arguments = ()
    tool_schemas: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    _parser: tokenizers.Tokenizer = field(init=False, repr=False)
    _control: ControlTokens = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        # The template `no` writes no control token, unless there are pictures.
        writes_none = self.template_source == _PROMPT and tokenizer.picture_processor is None
        parser = tokenizer.backend_tokenizer if writes_none else tokenizer.parser()
        templates = (*chat_templates(tokenizer.extra_files), self.template_source)
        object.__setattr__(self, "_parser", parser)
        object.__setattr__(self, "_control", ControlTokens.of(parser, tokenizer.eos_ids, templates))

    @property
    def takes_pictures(self) -> bool:
        """Whether prompts may have pictures: the tokenizer belongs to a vision-language model."""
        return self.tokenizer.picture_processor is not None

    @property
    def ignores_chat_template(self) -> bool:
        """Whether prompts are text as it is, although the tokenizer has a chat template."""
        return self.name == "no" and bool(chat_templates(self.tokenizer.extra_files))

    @property
    def digest(self) -> str:
        """SHA-256 of the source, and of system message, arguments and tools if there are any."""
        settings = [self.system_message, dict(self.template_variables), list(self.tool_schemas)]
        text = json.dumps([self.template_source, *settings]) if any(settings) else self.template_source
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Likely mistakes: control tokens that this tokenizer encodes as plain text; settings that have no effect."""
        if self.name == "chat":
            names = [name for name, _ in self.template_variables] + ["tools"] * bool(self.tool_schemas)
            unused = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", self.template_source)]
            return tuple(f"the model's chat template does not use {name}" for name in unused)
        marks = set(re.findall(r"<\|\w+\|>", self.template_source)) - set(self._control.ids_by_spelling)
        if not marks:
            return ()
        return (f"the template {self.name} contains {' and '.join(sorted(marks))}, plain text to this tokenizer",)

    def __call__(
        self,
        problem: str | Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        pictures: Sequence[Picture] = (),
    ) -> tuple[int, ...]:
        """The ids of a prompt. `tool_schemas` are of this prompt's tools, in place of the template's own.

        `pictures` are at the parts `{"type": "image"}` of the messages, else before the user's text. BadData for
        pictures of a model that takes none, and for another number of parts than pictures.
        """
        if pictures and self.tokenizer.picture_processor is None:
            fix = "take a vision-language model such as SmolVLM, or prompts without pictures"
            raise BadData("the prompt has pictures, and the model takes none", fix=fix)
        if self.name != "chat":
            text, (left, _, right) = _single_text(problem), self.template_source.partition(_PROMPT)
            left += "".join(map(self._picture_text, pictures))
            with self.tokenizer.refusing(text):
                return self.tokenizer.ids(self._control.encode(self._parser, text, left=left, right=right), bos=True)
        messages = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
        if pictures:
            messages = with_pictures(messages, len(pictures))
        mark, end, *_ = self._unused_characters(json.dumps([*messages, *(tools or ())], **_AS_IS))
        if messages and messages[-1].get("role") == "assistant":
            rendered = self._continued(messages, mark, end)
        else:
            rendered = self._render(messages, mark, tools=tools)
        if (processor := self.tokenizer.picture_processor) is not None:
            rendered = processor.fill(rendered, pictures)
        return self._encode(rendered, mark)

    def _picture_text(self, picture: Picture) -> str:
        assert self.tokenizer.picture_processor is not None, "__call__ refuses pictures without it"
        return self.tokenizer.picture_processor.text(picture)

    def conversation(self, messages: Messages) -> tuple[int, ...]:
        """The ids of a whole conversation whose last message is finished, as a reward model reads it."""
        mark = self._unused_characters(json.dumps(list(messages), **_AS_IS))[0]
        return self._encode(self._render(messages, mark, begin_answer=False), mark)

    def _continued(self, messages: Messages, mark: str, end: str) -> str:
        """A conversation up to the end of its last message, an assistant's, which the model continues.

        As `continue_final_message` of transformers: a template that trims messages trims the end, too. BadData for a
        template that drops the message.
        """
        if not isinstance(content := messages[-1].get("content"), str):
            fix = "move pictures into a message of the user"
            raise BadData("the assistant's message at the end of a prompt is not a text", fix=fix)
        last = {**messages[-1], "content": f"{content}{end} "}
        text, found, after = self._render([*messages[:-1], last], mark, begin_answer=False).rpartition(end)
        if not found:
            fix = "end the prompt with a message of the user, or use --template no"
            raise BadData("the chat template drops the assistant's message at the end of a prompt", fix=fix)
        return text if after.startswith(" ") else text.rstrip()

    def turn_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that a chat template writes before and after a user's later message. Empty for a plain template.

        They come from rendering a short conversation of single characters. Earlier turns are never rendered again: even
        where a template rewrites them, the tokens of a conversation only grow. BadData where the template drops the
        second message of a user.
        """
        if self.name != "chat":
            return (), ()
        mark, *contents = self._unused_characters()
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents)]
        text = self._render(messages, mark)
        before, message, after = text.rpartition(contents[1])[2].partition(contents[2])
        if not message:
            fix = "use --template no, and let the environment write the text around its messages"
            raise BadData("the chat template cannot format a later message of a user", fix=fix)
        return self._encode(before, mark), self._encode(after, mark)

    def answer_end(self) -> tuple[int, ...]:
        """The ids that a chat template writes after the text of the last answer of a conversation."""
        mark, question, answer, _ = self._unused_characters()
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return self._encode(self._render(messages, mark, begin_answer=False).rpartition(answer)[2], mark)

    def later_messages(self, messages: Messages) -> tuple[int, ...]:
        """The ids that a chat template writes for new messages after an answer of the model, up to the next answer.

        The messages are of users, tools or the system. They begin with the end of the model's turn. A plain template
        writes a user's text alone. BadData where the template cannot write such messages after an answer.
        """
        if self.name != "chat":
            with self.tokenizer.refusing(text := "".join(_single_text([message]) for message in messages)):
                return self.tokenizer.encode(text)
        mark, user, answer, _ = self._unused_characters(json.dumps(list(messages), **_AS_IS))
        call = {"type": "function", "id": "0" * 9, "function": {"name": answer, "arguments": {}}}
        turns: list[Mapping[str, Any]] = [{"role": "assistant", "content": answer}]
        if messages[0].get("role") == "tool":  # some templates write a result only after a call
            turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        problem: BadData | None = None
        for turn in turns:
            try:
                after = self._render([{"role": "user", "content": user}, turn, *messages], mark).rpartition(answer)[2]
            except BadData as error:
                problem = error
                continue
            return self._encode(after if "tool_calls" not in turn else self._from_end(after), mark)
        assert problem is not None, "the loop has at least one turn"
        raise problem

    def called(self, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None = None) -> tuple[int, ...]:
        """The ids that a chat template writes for an assistant's message with tool calls, and the token that ends it.

        They follow the generation prompt, and results follow them. BadData where the template writes another text
        before them, or no calls.
        """
        mark, user, result, _ = self._unused_characters(json.dumps(message, **_AS_IS))
        opening, calls = [{"role": "user", "content": user}], message["tool_calls"]
        names = [call["function"]["name"] for call in calls]
        before = self._render(opening, mark, tools=tools).rpartition(user)[2]
        results = [
            {"role": "tool", "content": result, "tool_call_id": c["id"], "name": n} for c, n in zip(calls, names)
        ]
        begun = self._render([*opening, message, *results], mark, begin_answer=False, tools=tools).rpartition(user)[2]
        text = begun.removeprefix(before)
        if not begun.startswith(before) or not all(name in text for name in names):
            what = "the chat template writes no tool call after the generation prompt"
            raise BadData(what, fix="use a model whose chat template writes tool_calls")
        end = self._from_end(text)
        ids = self._encode(text[: len(text) - len(end)], mark)
        return (*ids, self._encode(end, mark)[0])

    def _from_end(self, text: str) -> str:
        """The rendered text from its first end token on. BadData without one."""
        ends = [self.tokenizer.backend_tokenizer.id_to_token(i) for i in self.tokenizer.eos_ids]
        starts = [at for end in ends if end and (at := text.find(end)) >= 0]
        if not starts:
            what = "the chat template writes no end token after a tool call"
            raise BadData(what, fix="use a template that ends each turn with an end token of the model")
        return text[min(starts) :]

    def _unused_characters(self, text: str = "") -> list[str]:
        """Four private-use characters that do not occur in the text, the template or its settings."""
        used, unused = (
            self.template_source
            + json.dumps([self.system_message, list(self.template_variables), list(self.tool_schemas)], **_AS_IS),
            "",
        )
        for _ in range(4):
            unused += unused_character(used + text + unused)
        return list(unused)

    def _render(
        self,
        messages: Messages,
        mark: str,
        *,
        begin_answer: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation in the chat template, with the generation prompt at its end to `begin_answer`.

        It renders as transformers does, except for the clock: `strftime_now` is undefined, since it would make equal
        runs differ. Templates that use it fall back to a fixed date. Control tokens in messages are broken by `mark`.
        BadData for a role that is not a name: templates write roles between control characters.
        """
        for role in (str(message.get("role", "")) for message in messages):
            inner = (re.sub(r"^\W+|\W+$", "", spelling) for spelling in self._control.ids_by_spelling)
            if not _ROLE.fullmatch(role) or (role not in _ROLES and role in inner):
                fix = "take a role that the model's chat template knows, such as system, user, assistant or tool"
                raise BadData(f"{role[:40]!r} is not a role of a message", fix=fix)
        if self.system_message and [m.get("role") for m in messages[:1]] != ["system"]:
            messages = [{"role": "system", "content": self.system_message}, *messages]
        if self.tokenizer.picture_processor is not None:  # templates of such models iterate over parts
            messages = [{**message, "content": as_parts(message.get("content"))} for message in messages]
        settings = {
            **dict(self.template_variables),
            "messages": list(messages),
            "tools": list(self.tool_schemas if tools is None else tools) or None,
            "documents": None,
            "add_generation_prompt": begin_answer,
        }
        return render(
            self.template_source,
            _escape_all(settings, partial(self._broken, mark=mark)) | _named_tokens(self.tokenizer),
        )

    def _broken(self, text: str, *, mark: str) -> str:
        """A text with `mark` in each spelling of a control token, also of a placeholder that would stay text."""
        text = self._control.broken(self._parser, text, mark)
        if (processor := self.tokenizer.picture_processor) is None:
            return text
        placeholder = processor.placeholder
        return text.replace(placeholder, placeholder[0] + mark + placeholder[1:])

    def _encode(self, text: str, mark: str) -> tuple[int, ...]:
        """The ids of a rendered text; the mark breaks control tokens of messages."""
        with self.tokenizer.refusing(text.replace(mark, "")):
            return tuple(self._control.encode_marked(self._parser, text, mark).ids)


def find_template(
    name: str,
    tokenizer: Tokenizer,
    *,
    system: str = "",
    arguments: Arguments = (),
    tools: Sequence[Mapping[str, Any]] = (),
) -> PromptTemplate:
    """Find a template: `chat` (the tokenizer's), `no`, `r1`, `qwen_math`, or any text with one `{prompt}` in it.

    Raises Usage for a system message or arguments with a plain template, and for an argument that has another source.
    """
    if reserved := [argument for argument, _ in arguments if argument in (*_VARIABLES, *_TOKENS)]:
        raise Usage(
            f"the template argument {reserved[0]} cannot be set: Groupwise sets it", fix=f"leave out {reserved[0]}"
        )
    if name == "chat":
        return PromptTemplate(name, chat_template(tokenizer), tokenizer, system, arguments, tools)
    if system or arguments:
        what = "a system prompt" if system else "template arguments"
        fix = f"use --template chat, or write the text into the template itself: --template 'TEXT {_PROMPT}'"
        raise Usage(f"{what} need{'s' * bool(system)} a chat template; the template is {name}", fix=fix)
    if name in PLAIN:
        return PromptTemplate(name, PLAIN[name], tokenizer)
    if name.count(_PROMPT) == 1:
        return PromptTemplate("given as text", name, tokenizer)
    near = get_close_matches(name, ["chat", *PLAIN], n=1, cutoff=0.7)
    fix = f"did you mean {near[0]}, or" if near else f"take chat, {', '.join(PLAIN)}, or"
    raise Usage(f"no template is called {name!r}", fix=f"{fix} a text that contains {_PROMPT} once{'?' * len(near)}")


def encode_answer(tokenizer: Tokenizer, answer: str) -> tuple[int, ...]:
    """The ids of a written answer and its end token.

    The end token is the tokenizer's `eos_token` if that is one of the model's end tokens, else the lowest of these.
    """
    eos_token = _config(tokenizer).get("eos_token")
    spelling = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    end = tokenizer.backend_tokenizer.token_to_id(spelling) if isinstance(spelling, str) else None
    return (*tokenizer.encode(answer), end if end in tokenizer.eos_ids else min(tokenizer.eos_ids))


def conversation_turn(tokenizer: Tokenizer, frame: tuple[Ids, Ids], answer: Ids, text: str) -> tuple[Ids, Ids, Ids]:
    """Encode an environment's message: template ids before it, its own ids, template ids after it.

    `frame` is the template's `turn_frame()`; `answer` holds the tokens since the prompt. An end token that the model
    generated is not repeated. Before the model's first token the message gets no frame. BadData for text that the
    tokenizer cannot encode.
    """
    ids, (before, after) = tokenizer.encode(text), frame
    return (without_second_end(tokenizer, answer, before), ids, after) if answer else ((), ids, ())


@lru_cache(16)
def turn_end(template: PromptTemplate) -> Ids:
    """The ids that a chat template writes after the text of the last answer of a conversation; they begin its end."""
    return template.answer_end()


def without_second_end(tokenizer: Tokenizer, answer: Ids, after: Ids) -> Ids:
    """The template's ids after an answer, without the end token if the model generated the same one."""
    return after[1:] if answer[-1:] == after[:1] and answer[-1] in tokenizer.eos_ids else after


def chat_template(tokenizer: Tokenizer) -> str:
    """The Jinja source in chat_template.jinja or tokenizer_config.json. BadData if there is none."""
    files = dict(tokenizer.extra_files)
    if "chat_template.jinja" in files:
        try:
            return files["chat_template.jinja"].decode()
        except UnicodeDecodeError as error:
            raise BadData("chat_template.jinja is not UTF-8", evidence=str(error), fix="fetch it again") from error
    source = _config(tokenizer).get("chat_template")
    if isinstance(source, list):  # several templates, each with a name
        source = next((t.get("template") for t in source if isinstance(t, dict) and t.get("name") == "default"), None)
    if not isinstance(source, str):
        fix = "use --template no, r1 or qwen_math, or take a model that was trained to chat"
        what = "this model's tokenizer has no chat template"
        raise BadData(what, evidence="none in chat_template.jinja or tokenizer_config.json", fix=fix)
    return source


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    return json_object(dict(tokenizer.extra_files).get("tokenizer_config.json", b"{}"), "tokenizer_config.json")


def _single_text(problem: str | Messages) -> str:
    """The text of a problem that is a string or a single message, of the user or a tool. BadData for another one."""
    if isinstance(problem, str):
        return problem
    fix = "use --template chat"
    if len(problem) != 1:
        raise BadData("a plain template formats a single text, and this prompt is a conversation", fix=fix)
    if (role := problem[0].get("role")) in ("system", "developer"):
        raise BadData(f"a plain template has no place for a message of the role {role}", fix=fix)
    parts = as_parts(problem[0].get("content"))
    texts = [str(part.get("text", "")) for part in parts if part.get("type") != "image"]
    if any(part.get("type") == "image" for part in parts[len(parts) - len(texts) :]):
        raise BadData("a plain template has a prompt's pictures before its text, and a part is after a text", fix=fix)
    return "".join(texts)


def _escape_all(value: Any, escape: Callable[[str], str]) -> Any:
    """A message with every string in it escaped, at any depth, and every name of a field."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {escape(k): _escape_all(v, escape) for k, v in value.items()}
    return [_escape_all(v, escape) for v in value] if isinstance(value, list | tuple) else value


def _named_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens that a chat template knows by name."""
    config = _config(tokenizer)
    values = {n: v.get("content") if isinstance(v := config.get(n), dict) else v for n in _TOKENS}
    return {n: v for n, v in values.items() if isinstance(v, str)}
