"""A few rows in the layouts of published sets; problems, answers and solutions are invented."""

from typing import Any

Rows = list[dict[str, Any]]


def _chat(text: str) -> list[dict[str, str]]:
    return [{"content": text, "role": "user"}]


def gsm8k(names: tuple[str, ...] = ("Ada", "Bo", "Cem")) -> Rows:
    return [
        {
            "question": f"{who} has {n} boxes with 200 pens each. How many pens does {who} have?",
            "answer": f"{who} has {n} * 200 = <<{n}*200={n * 200}>>{n * 200} pens.\n#### {n * 200:,}",
        }
        for n, who in enumerate(names, start=5)
    ]


def dapo() -> Rows:
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": _chat(f"Answer on a line of its own.\n\nHow many pairs are there among {n} things?\n\nAnswer: ?"),
            "ability": "MATH",
            "reward_model": {"ground_truth": str(n * (n - 1) // 2), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"0000-{n}"},
        }
        for n in (4, 5, 6)
    ]
    return [row for row in rows for _ in range(2)]  # the published file has each row a hundred times


PUBLISHED: dict[str, tuple[Rows, list[Any]]] = {
    "gsm8k": (gsm8k(), ["1000", "1200", "1400"]),
    "math": (
        [
            {"problem": "Halve $3$.", "type": "Algebra", "solution": "So $\\boxed{\\frac{3}{2}}$."},
            {"problem": "Double $3$.", "type": "Algebra", "solution": "\\boxed{5}? No: $\\fbox{6}$"},
            {"problem": "Name a set.", "type": "Algebra", "solution": "It is $\\boxed{\\{1, 2\\}}$"},
            {"problem": "Count to $2$.", "type": "Algebra", "solution": "One, $\\boxed 2$."},
        ],
        ["\\frac{3}{2}", "6", "\\{1, 2\\}", "2"],
    ),
    "dapo-math-17k": (dapo(), ["6", "10", "15"]),
    "countdown": (
        [{"target": 13, "nums": [3, 7, 2]}, {"target": 50, "nums": [5, 5, 2]}],
        [{"numbers": [3, 7, 2], "target": 13}, {"numbers": [5, 5, 2], "target": 50}],
    ),
    "aime24": (
        [
            {"id": 1, "problem": "Find $n$.", "solution": "$\\boxed{033}$", "answer": "033", "url": "", "year": "2024"},
            {"id": 2, "problem": "Find $m$.", "solution": "$\\boxed{7}$", "answer": "7", "url": "", "year": "2024"},
        ],
        ["033", "7"],
    ),
    "aime25": (
        [{"problem": "Find $k$.", "answer": "70", "id": "0"}, {"problem": "And $l$.", "answer": "1", "id": "1"}],
        ["70", "1"],
    ),
    "amc": (
        [
            {"id": 0, "problem": "Find $x$.", "answer": 27.0, "url": ""},
            {"id": 1, "problem": "Or $y$.", "answer": 3.5, "url": ""},
        ],
        [27, 3.5],
    ),
    "math500": (
        [
            {
                "problem": f"Add $1$ to ${n}$.",
                "solution": "Clear.",
                "answer": str(n + 1),
                "subject": "Algebra",
                "level": 1,
                "unique_id": f"test/algebra/{n}.json",
            }
            for n in (1, 2)
        ],
        ["2", "3"],
    ),
    "minerva": (
        [{"question": "How fast?", "answer": "3 \\times 10^8"}, {"question": "How far?", "answer": "9.0"}],
        ["3 \\times 10^8", "9"],
    ),
    "olympiadbench": (
        [
            {"id": 1, "question": "Find all $x$.", "solution": ["..."], "final_answer": ["$1,-1$"], "unit": None},
            {"id": 2, "question": "Find both.", "solution": ["..."], "final_answer": ["$1$", "$2$"], "unit": None},
        ],
        ["$1,-1$", "$1$, $2$"],
    ),
}
"""By preset: rows, and the gold answers that are to be read off them."""

OTHER_COPIES: list[tuple[str, Rows, list[Any]]] = [
    ("aime24", [{"ID": "2024-I-1", "Problem": "Find $n$.", "Solution": "...", "Answer": 33}], [33]),
    ("aime24", [{"id": 0, "problem": "Find $n$.", "solution": "\\boxed{204}", "url": ""}], ["204"]),
    ("aime24", [{"data_source": "aime", "prompt": _chat("Find $n$."), "reward_model": {"ground_truth": "33"}}], ["33"]),
    ("aime25", [{"question": "Find $k$.", "answer": "70"}], ["70"]),
    ("amc", [{"id": 0, "question": "Find $x$.", "answer": "27.0", "url": ""}], ["27"]),
    ("minerva", [{"problem": "How fast?", "answer": ["9e8"]}], ["9e8"]),
    ("olympiadbench", [{"problem": "Find all.", "answer": ["1", "2"]}], ["1, 2"]),
    ("math", [{"problem": "Halve $3$.", "solution": "...", "answer": "1.5"}], ["1.5"]),
    ("dapo-math-17k", [{"prompt": "How many?", "solution": "34", "data_source": "math_dapo"}], ["34"]),
    ("countdown", [{"target": 9, "numbers": [9]}], [{"numbers": [9], "target": 9}]),
]
"""Copies of the same sets under other columns."""
