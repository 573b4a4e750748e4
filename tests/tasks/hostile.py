"""What a model may write to run code, to leak, or to stop the run."""

from collections.abc import Iterator

SECRET = "GROUPWISE_TEST_SECRET"
"""An environment variable that no verdict may show."""


def octal(text: str) -> str:
    """A string literal without letters."""
    return "".join(f"\\{ord(c):03o}" for c in text)


def fullwidth(text: str) -> str:
    """The same letters to Unicode's NFKC, and to Python's parser."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def roman(text: str) -> str:
    """Letters replaced by Roman numerals: numbers to `isalpha`, letters to Python's parser."""
    return text.translate(str.maketrans("cdilmvx", "ⅽⅾⅰⅼⅿⅴⅹ"))


def attacks(canary: str) -> Iterator[str]:
    """Answers that create the file `canary`, or show the secret, where something evaluates or formats them."""
    touch = f"open('{canary}','w')"
    imported = f"__import__('pathlib').Path('{canary}').touch()"
    braces = "{" * 3000 + "}" * 3000
    yield from (touch, imported, f"exec({touch!r})", f"eval({touch!r})", f"[{touch}][0]", f"({touch}).name")
    yield from (fullwidth(touch), fullwidth(imported), roman(imported), fullwidth("exec") + f"({touch!r})")
    yield from (f"ln('{octal(touch + '.name')}'){braces}", f"ln('{octal(touch)}')", f"S('{octal(touch)}')")
    yield from (f"eⅹeⅽ('{octal(touch)}'){braces}", f"sympify({touch!r})", f"x.subs(x,{touch!r})", f"N({touch!r})")
    yield from (
        rf"\text{{{imported}}}",
        rf"\mathrm{{{touch}}}",
        rf"\operatorname{{{imported}}}",
        rf"\frac{{{touch}}}{{1}}",
    )
    yield from (rf"\_\_import\_\_('os').mknod('{canary}')", rf"x_{{__class__}}.{touch}", rf"\sqrt{{{touch}}}")
    yield from (
        f"().__class__.__base__.__subclasses__()[{touch}]",
        "(1).__class__.__mro__",
        "x.__class__",
        "x.free_symbols",
    )
    yield from (f"(lambda: {touch})()", f"lambda x: {touch}", f"[_ for _ in [{touch}]]", f"({touch} if 1 else 0)")
    yield from (
        f"f'{{{touch}}}'",
        f"{{{touch}}}",
        "{0.__class__.__init__.__globals__}",
        "{prompt.__class__}",
        "{answer!r:>9999999}",
    )
    yield from (
        "%s%s%s%n", f"%({SECRET})s", f"${SECRET}", f"${{{SECRET}}}", f"{{{{ environ['{SECRET}'] }}}}", "{fence}",
        "%999999999d",
    )  # fmt: skip
    yield from (
        f"__import__('os').environ['{SECRET}']",
        f"os.getenv('{SECRET}')",
        f"$(touch {canary})",
        f"`touch {canary}`; touch {canary}",
    )
    yield from (
        r"\input{/proc/self/environ}",
        f"\\write18{{touch {canary}}}",
        rf"\immediate\openout1={canary}",
        "<!ENTITY x SYSTEM 'file:///proc/self/environ'>",
    )

    yield f"```python\n{touch}\n```"


def texts() -> Iterator[str]:
    """Answers of strange characters, and of repetitions in which a parser or a pattern can lose itself."""
    yield from (
        "\x1b[2J\x1b]0;x\x07", "\x00", "4\x00711", "\ud800", "x+\udfff", "\u202e1174\u202c", "\u2066x\u2069", "\ufeff",
        "\u200b" * 50, "ﬁ", "①+②", "x²", "Å", "\r\n\x85\u2028\u2029",
    )  # fmt: skip
    yield from (
        "<tool_call>" * 500, '{"$ref": "file:///proc/self/environ"}', "</answer>" * 200, "[" * 5000, "{" * 5000,
        '{"a":' * 5000, "(" * 200 + ")" * 200, "-" * 5000 + "1", "\\" * 5000,
    )  # fmt: skip
    yield from (
        "9" * 20_000, "0." + "0" * 20_000 + "1", "1e999999999", "1/0", "0^0", "x/0", "oo-oo", "nan", "zoo", "1_0",
        "0x" + "f" * 900, "٣", "Ⅷ", "½", "1" + ",000" * 900,
    )  # fmt: skip
    yield from (
        "a" * 60 + "!", "answer" + " " * 3000 + "x", "x" + "=x" * 400, "1," * 450, r"\boxed{" * 300, "$" * 3000,
        "**" * 3000, r"\begin{matrix}" * 100, "Answer:" * 400,
    )  # fmt: skip


BOMBS = (
    "(x+1)^{998}", "(x+y+z)^{200}", r"(\sin x+\cos x)^{200}", "(a+b+c+d+e)^{99}",
    r"(\sqrt{2}+\sqrt{3}+\sqrt{5}+x)^{99}", "(x^{2}+1)^{998}", r"\binom{x}{999}", r"\binom{999}{x}",
    r"\binom{n}{k}^{99}", r"\frac{x!}{(x-999)!}", r"\binom{\binom{99}{9}}{99}", r"\binom{x}{99}^{99}", "999!",
    "(999!)^{999}", "x!!", r"\frac{999!}{998!}x", "((x!)!)", "(99!)!", "999!^{99}+x", "123456789!",
    r"\sqrt{1+" * 20 + "x" + "}" * 20, r"\sqrt{2+\sqrt{3+\sqrt{5+\sqrt{7+\sqrt{11+\sqrt{13+x}}}}}}",
    r"\sqrt[99]{x^{999}+1}", "9^{9^{9^9}}", "x^{x^{x^{x^{x}}}}", "2^{999}^{999}", "10^{10^{100}}",
    "(((x^{99})^{99})^{99})^{99}", "9**9**9", "e^{e^{e^{e^{9}}}}", "(x^{999}-1)/(x-1)", r"\frac{x^{997}-y^{997}}{x-y}",
    r"\frac{(x+1)^{300}}{(x+2)^{300}}-1", r"\frac{1}{1+\frac{1}{1+" + "x" + "}}" * 2,
    r"\sin(\sin(\sin(\sin(\sin(\sin(x))))))^{99}", r"\tan(99x)", r"\cos(999\arccos(x))", r"\sin(x)^{100}\cos(x)^{100}",
    r"\ln(x!)^{99}", r"\sum_{k=1}^{10^9} k^k", r"\prod_{k=1}^{999999} k", r"\int_0^1 x^{x^x} dx",
    r"\lim_{x\to 0} \frac{\sin x}{x}", r"\int e^{-x^2}\sin(x^3)dx",
    r"\begin{pmatrix}" + "&".join("abcdefghij") + r"\end{pmatrix}^{99}", r"\gcd(10^{99}+1,x)", r"(1+i)^{999}+x",
    r"\log_{x}(x^{999}+1)", "x" + "+x" * 200, "(x+1)" * 60,
    "(x+1)(x+2)(x+3)(x+4)(x+5)(x+6)(x+7)(x+8)(x+9)(y+1)(y+2)(y+3)(z+1)(z+2)", "|" * 30 + "x" + "|" * 30,
)  # fmt: skip
"""Expressions that are short to write and long to compute, none of them equal to x+1."""
