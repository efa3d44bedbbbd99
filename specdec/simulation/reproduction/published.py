"""What arXiv 2601.11580 measured, as numbers.

"Speculative Decoding: Performance or Illusion?" (MLSys 2026): vLLM on H100, one GPU for the 8B
models and four for the 70B one, K = 3 unless a name says otherwise, static concurrency, greedy,
prefill included. Read from the vector figures of the paper, exact to about 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "2601.11580"
BATCHES = (1, 16, 64, 128)
DATASETS = ("gsm8k", "cnn", "sharegpt", "instructcoder")

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Speed-ups over no speculation at BATCHES, figure 1."""

    model: str
    drafter: str
    dataset: str
    k: int
    speedups: Row


def _curves(model: str, drafter: str, k: int, *rows: Row) -> list[Curve]:
    return [Curve(model, drafter, name, k, row) for name, row in zip(DATASETS, rows, strict=True)]


# fmt: off
SPEEDUPS: tuple[Curve, ...] = (
    *_curves(
        "llama-3.1-8b", "ngram", 3,
        (1.17, 1.15, 1.10, 1.05), (1.34, 1.28, 1.18, 1.12),
        (1.27, 1.25, 1.19, 1.11), (1.88, 1.74, 1.47, 1.29),
    ),
    Curve("llama-3.1-8b", "ngram", "instructcoder", 5, (2.10, 1.89, 1.51, 1.30)),
    *_curves(
        "llama-3.1-8b", "eagle", 3,
        (1.73, 1.68, 1.47, 1.21), (1.44, 1.40, 1.27, 1.14),
        (1.68, 1.67, 1.53, 1.29), (1.97, 1.85, 1.54, 1.30),
    ),
    *_curves(
        "llama-3.1-8b", "eagle3", 3,
        (1.75, 1.70, 1.49, 1.22), (1.69, 1.58, 1.40, 1.23),
        (1.71, 1.68, 1.55, 1.30), (2.02, 1.92, 1.57, 1.31),
    ),
    *_curves(
        "llama-3-70b", "ngram", 3,
        (1.16, 1.14, 1.09, 1.00), (1.28, 1.21, 1.12, 1.06),
        (1.19, 1.15, 1.10, 1.05), (1.89, 1.71, 1.45, 1.20),
    ),
    Curve("llama-3-70b", "ngram", "instructcoder", 5, (2.09, 1.84, 1.45, 1.19)),
    *_curves(
        "llama-3-70b", "eagle", 3,
        (1.91, 1.74, 1.42, 1.01), (1.85, 1.57, 1.27, 1.02),
        (1.95, 1.77, 1.50, 1.06), (2.49, 2.16, 1.65, 1.20),
    ),
    *_curves(
        "llama-3-70b", "draft", 3,
        (2.35, 2.12, 1.70, 1.26), (2.10, 1.70, 1.34, 1.11),
        (2.16, 1.97, 1.66, 1.25), (2.55, 2.19, 1.70, 1.27),
    ),
    *_curves(
        "qwen3-8b", "ngram", 3,
        (1.11, 1.11, 1.05, 0.99), (1.53, 1.48, 1.37, 1.25),
        (1.14, 1.10, 1.09, 1.02), (2.18, 2.01, 1.63, 1.38),
    ),
    Curve("qwen3-8b", "ngram", "instructcoder", 5, (2.63, 2.30, 1.70, 1.37)),
    *_curves(
        "qwen3-8b", "eagle3", 3,
        (1.82, 1.76, 1.50, 1.16), (1.82, 1.71, 1.47, 1.23),
        (1.63, 1.56, 1.44, 1.14), (1.99, 1.84, 1.47, 1.18),
    ),
    *_curves(
        "qwen3-8b", "draft", 3,
        (1.70, 1.68, 1.47, 1.14), (1.46, 1.37, 1.15, 0.97),
        (1.35, 1.31, 1.13, 0.91), (1.79, 1.69, 1.40, 1.12),
    ),
)

SHARE_BATCHES = (1, 64, 128, 512)
# Figure 4, CNN/DailyMail: per cent of the time for drafting, verification, sampling, overhead.
SHARES: dict[tuple[str, str], tuple[Row, Row, Row, Row]] = {
    ("llama-3.1-8b", "none"): (
        (0, 85.4, 0.6, 13.9), (0, 89.3, 0.3, 10.4), (0, 90.6, 0.2, 9.2), (0, 92.2, 0.1, 7.7),
    ),
    ("llama-3.1-8b", "ngram"): (
        (0.2, 84.8, 1.0, 14.1), (1.0, 87.8, 0.7, 10.5), (1.3, 88.8, 0.5, 9.3),
        (1.4, 90.3, 0.3, 8.0),
    ),
    ("llama-3.1-8b", "eagle"): (
        (24.7, 62.8, 1.5, 11.0), (13.4, 77.5, 0.7, 8.5), (9.7, 81.9, 0.4, 8.0),
        (7.1, 85.6, 0.2, 7.0),
    ),
    ("llama-3.1-8b", "eagle3"): (
        (21.7, 65.2, 1.6, 11.5), (11.1, 79.8, 0.7, 8.4), (8.3, 83.5, 0.4, 7.8),
        (6.7, 86.3, 0.2, 6.9),
    ),
    ("llama-3-70b", "none"): (
        (0, 93.8, 0.3, 6.0), (0, 95.2, 0.1, 4.7), (0, 95.7, 0.1, 4.2), (0, 96.2, 0, 3.7),
    ),
    ("llama-3-70b", "ngram"): (
        (0.1, 93.3, 0.4, 6.2), (0.4, 94.6, 0.3, 4.7), (0.5, 95.0, 0.2, 4.3),
        (0.6, 95.5, 0.1, 3.7),
    ),
    ("llama-3-70b", "eagle"): (
        (12.1, 81.5, 0.7, 5.6), (5.6, 90.3, 0.3, 3.9), (4.0, 92.6, 0.2, 3.3),
        (3.2, 93.6, 0.1, 3.1),
    ),
    ("llama-3-70b", "draft"): (
        (20.8, 72.1, 0.8, 6.3), (7.2, 88.5, 0.3, 4.1), (5.1, 91.3, 0.1, 3.5),
        (3.1, 93.7, 0.1, 3.1),
    ),
    ("qwen3-8b", "none"): (
        (0, 85.1, 0.7, 14.2), (0, 88.0, 0.4, 11.6), (0, 89.2, 0.3, 10.5), (0, 90.6, 0.2, 9.2),
    ),
    ("qwen3-8b", "eagle3"): (
        (21.2, 65.8, 1.7, 11.4), (12.1, 76.5, 0.8, 10.6), (8.9, 80.4, 0.5, 10.2),
        (7.1, 83.8, 0.3, 8.9),
    ),
    ("qwen3-8b", "draft"): (
        (47.1, 41.9, 1.3, 9.7), (24.9, 64.9, 0.7, 9.5), (21.5, 69.2, 0.5, 8.9),
        (16.0, 76.1, 0.3, 7.6),
    ),
}

TREE_SIZES = {"chain of 3": 3, "tree of 6": 6, "tree of 21": 21}
# Figure 2, SGLang 0.5.9, depth 3: EAGLE-3 with Qwen3-8B and EAGLE with Llama-3-70B.
TREES: dict[tuple[str, str], tuple[Row, Row, Row]] = {
    ("qwen3-8b", "gsm8k"): (
        (1.65, 1.58, 1.31, 1.22), (1.68, 1.50, 1.09, 1.03), (1.85, 1.33, 0.58, 0.56),
    ),
    ("qwen3-8b", "cnn"): (
        (1.61, 1.51, 1.28, 1.24), (1.62, 1.33, 0.98, 0.94), (1.74, 1.17, 0.63, 0.61),
    ),
    ("qwen3-8b", "sharegpt"): (
        (1.43, 1.39, 1.20, 1.11), (1.47, 1.28, 0.93, 0.86), (1.59, 1.14, 0.53, 0.49),
    ),
    ("qwen3-8b", "instructcoder"): (
        (1.79, 1.65, 1.31, 1.26), (1.77, 1.51, 1.10, 1.05), (1.82, 1.28, 0.62, 0.60),
    ),
    ("llama-3-70b", "gsm8k"): (
        (1.80, 1.62, 1.31, 1.20), (1.91, 1.56, 1.13, 1.02), (2.10, 1.36, 0.57, 0.54),
    ),
    ("llama-3-70b", "cnn"): (
        (1.77, 1.51, 1.21, 1.11), (1.86, 1.47, 1.06, 0.97), (1.99, 1.24, 0.62, 0.59),
    ),
    ("llama-3-70b", "sharegpt"): (
        (1.81, 1.65, 1.39, 1.24), (1.90, 1.59, 1.14, 0.99), (2.03, 1.32, 0.54, 0.49),
    ),
    ("llama-3-70b", "instructcoder"): (
        (2.41, 2.05, 1.55, 1.33), (2.40, 1.91, 1.30, 1.13), (2.40, 1.50, 0.65, 0.61),
    ),
}
# fmt: on

# Part of the rounds in which lookup finds the last three tokens earlier in the text: counted on the
# recordings that the authors released. Every token that lookup gets accepted there follows such a
# match, and with four tokens many do not. (Their simulator has 0.2, 0.4, 0.2 and 0.8.)
LOOKUP_TOKENS = 3
LOOKUP_MATCHES = {"gsm8k": 0.15, "cnn": 0.21, "sharegpt": 0.20, "instructcoder": 0.54}

FLAWS = (
    "Drafting of EAGLE takes a constant fitted at K = 3, so that K = 1 pays for three draft steps "
    "and K = 5 gets two for nothing. Here every draft step is paid for.",
    "Its batch is one request copied B times, without stragglers. Here every sequence is another "
    "request, which ends and is followed by the next.",
    "Its EAGLE-3 runs on the recordings of EAGLE. Here each has an acceptance of its own, and none "
    "where none is known.",
    "Combined drafting pays for lookup only and changes drafters for nothing. Here every drafter "
    "that is asked is paid for, as deep as the deepest request.",
    "Lookup finds a match with a constant probability per data set, which its recordings "
    "contradict. Here recordings say where it matches; cells without one take the rate counted on "
    "them.",
)
