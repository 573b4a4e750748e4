"""Messages with pictures: content as a list of parts, `{"type": "image"}` and `{"type": "text", "text": ...}`."""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]


def as_parts(content: Any) -> list[Any]:
    """The content of a message as parts; a text is one part."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def count_pictures(messages: Sequence[Message]) -> int:
    """The number of parts that are pictures."""
    return sum(part.get("type") == "image" for message in messages for part in as_parts(message.get("content")))


def with_pictures(messages: Sequence[Message], count: int) -> list[Message]:
    """Messages with `count` pictures: if no part is one, they precede the text of the first message of the user.

    >>> with_pictures([{"role": "user", "content": "How many?"}], 1)[0]["content"]
    [{'type': 'image'}, {'type': 'text', 'text': 'How many?'}]
    """
    messages = list(messages)
    if not count_pictures(messages):
        first = next((i for i, message in enumerate(messages) if message.get("role") == "user"), 0)
        parts = [*({"type": "image"} for _ in range(count)), *as_parts(messages[first].get("content"))]
        messages[first] = {**messages[first], "content": parts}
    return messages
