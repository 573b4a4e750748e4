"""Small model directories for tests."""

from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Fast

from groupwise.models import Decoder, DecoderShape, Tokenizer, write_model


def shape(family: str = "qwen3", **changes: object) -> DecoderShape:
    fields = {
        "vocabulary_size": 40, "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 12,
        "mlp_width": 48, "max_positions": 128, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "qk_norm": family == "qwen3",
        "qkv_bias": family == "qwen2",
    }  # fmt: skip
    return DecoderShape(model_family=family, **{**fields, **changes})  # pyright: ignore[reportArgumentType]


def characters() -> Tokenizer:
    """A tokenizer with one token per character of arithmetic, and an end token."""
    vocabulary = {"<end>": 0, **{c: i + 1 for i, c in enumerate("0123456789+-*=;#x ")}}
    fast = Fast(models.WordLevel(vocabulary, unk_token="x"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens(["<end>"])
    return Tokenizer.of(fast, {0})


def bytes_(vocabulary: int = 300) -> Tokenizer:
    """Byte-level BPE whose tokens split characters."""
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|im_end|>"], show_progress=False
    )
    fast.train_from_iterator(["héllo wörld 日本語 日本 😀😀 a = b + c"] * 3, trainer)
    return Tokenizer.of(fast, {0, 1})


def pieces() -> Tokenizer:
    """Sentence pieces with a token for every byte, as Llama 2 and Mistral have them."""
    vocabulary = {"<unk>": 0, "</s>": 1, "\u2581": 2, "\u2581a": 3, "a": 4, "b": 5}
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    fast = Fast(models.BPE(vocabulary, [("\u2581", "a")], byte_fallback=True, unk_token="<unk>"))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens(["</s>"])
    return Tokenizer.of(fast, {1})


def directory(path: Path, family: str = "qwen3", seed: int = 1, **changes: object) -> Path:
    """Write a random model of the family with its tokenizer."""
    write_model(Decoder.new(shape(family, **changes), seed, spread=0.2), path, tokenizer=characters())
    return path
