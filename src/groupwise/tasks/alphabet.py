"""The tokenizer of `calculator`: one id a character, as a fast tokenizer that every tool of the field loads."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CHARACTERS = "0123456789+-*=;#"
PAD, END = "<pad>", "<end>"


def calculator_tokenizer() -> Tokenizer:
    """Sixteen characters, a pad token and the end token that closes an answer; both decode to nothing.

    >>> tokenizer = calculator_tokenizer()
    >>> tokenizer.encode("7*5=35;#").ids, tokenizer.decode([1, 13, 7])
    ([9, 14, 7, 15, 5, 7, 16, 17], '-5')
    """
    vocabulary = {token: i for i, token in enumerate((PAD, END, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END)])
    return tokenizer
