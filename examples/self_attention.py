"""Self-attention without parameters, on the `apple` and `bank` examples of the lecture notes.

    python examples/self_attention.py

    1  apple    a static word vector is the average of all uses of the word
    2  bank     mixing in its neighbours gives a word another vector in each sentence
    3  weights  they come from dot products, through a softmax: softmax(e eᵀ) e
    4  layers   the same numbers from `attend`, from torch, and from a loop over the words
    5  idioms   without parameters there is nothing to learn: queries, keys and values need matrices

Shapes: T words, D width, B sentences.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.attention import Attention, attend

# ── The numbers of the notes ──────────────────────────────────────────────────────────────────────────────────────────

APPLE_USES = {"fruit": 9_000, "technology": 1_000}  # sentences with `apple` in each sense
APPLE_VECTOR = (0.9, 0.1)  # taste, technology; the notes first sketch (0.8, 0.1), which is no average: it sums to 0.9
APPLE_SKETCH = (0.8, 0.1)

S1, S2 = ("money", "bank", "grows"), ("river", "bank", "flows")

# How much of each word of the sentence a word takes.  The notes give the rows of `bank` twice, with different numbers.
BANK_SKETCH_S1 = (0.2, 0.7, 0.1)
BANK_SKETCH_S2 = (0.5, 0.4, 0.1)
TABLE_S1 = ((0.7, 0.2, 0.1), (0.25, 0.7, 0.05), (0.1, 0.2, 0.7))  # rows and columns: money, bank, grows
TABLE_S2 = ((0.8, 0.15, 0.05), (0.2, 0.78, 0.02), (0.4, 0.01, 0.59))  # rows and columns: river, bank, flows

# The notes give no vectors; these are ours.  The features: finance, nature, movement.
FEATURES = ("finance", "nature", "movement")
VECTORS = {
    "money": (2.0, 0.0, 0.2), "bank": (1.0, 1.0, 0.0), "grows": (0.6, 0.6, 1.2),
    "river": (0.0, 2.0, 0.6), "flows": (0.0, 1.0, 1.6),
}  # fmt: skip


def embed(words: tuple[str, ...]) -> Tensor:
    """The static vectors of words: (T, D)."""
    return torch.tensor([VECTORS[word] for word in words])


# ── 1: a static vector is an average ──────────────────────────────────────────────────────────────────────────────────


def average_meaning(uses: dict[str, int]) -> Tensor:
    """The mean over all uses of a word, each a one-hot vector of its sense: (senses,)."""
    counts = torch.tensor(list(uses.values()))
    senses = torch.eye(len(uses))
    return counts / counts.sum() @ senses


# ── 2 and 3: a new vector for each word of a sentence ─────────────────────────────────────────────────────────────────


def self_attention(e: Tensor) -> tuple[Tensor, Tensor]:
    """Compute softmax(e eᵀ) e: words (…, T, D) → their new vectors (…, T, D), and the weights (…, T, T)."""
    weights = (e @ e.transpose(-2, -1)).softmax(-1)  # (…, T, T)
    return weights @ e, weights


def raw_attention(e: Tensor) -> Tensor:
    """Compute (e eᵀ) e, as the notes write it, with dot products for weights: (…, T, D) → (…, T, D)."""
    return e @ e.transpose(-2, -1) @ e


def one_word_at_a_time(e: Tensor) -> Tensor:
    """`self_attention` as a loop: no word waits for the result of another, so any order will do: (T, D) → (T, D)."""
    new = torch.empty_like(e)
    for i, word in enumerate(e):
        scores = torch.stack([word @ other for other in e])
        weights = scores.exp() / scores.exp().sum()
        new[i] = sum((weight * other for weight, other in zip(weights, e, strict=True)), torch.zeros_like(word))
    return new


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors (D,)."""
    return float(F.cosine_similarity(a, b, dim=0))


# ── 4: the same numbers from layers ───────────────────────────────────────────────────────────────────────────────────


def identity_attention(dim: int) -> Attention:
    """A Transformer's attention layer that changes nothing on the way: W_q = W_k = W_v = W_o = I, scale 1."""
    layer = Attention(dim, heads=1, scale=1.0, bias=False)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(dim).repeat(3, 1))
        layer.out.weight.copy_(torch.eye(dim))
    return layer


# ── 5: what it cannot learn ───────────────────────────────────────────────────────────────────────────────────────────

IDIOMS = (("piece", "of", "cake"), ("cup", "of", "tea"))  # easy; something one likes
LITERAL = (("piece", "of", "tea"), ("cup", "of", "cake"))
IDIOM_WORDS = ("piece", "cup", "of", "cake", "tea")


def learnable_attention(dim: int, seed: int = 0) -> Attention:
    """An attention layer with one head of width 16; with width 5, 4 of 15 trainings end at an accuracy of 75 %."""
    torch.manual_seed(seed)
    return Attention(dim, heads=1, width=16, bias=False)


def learn_idioms(layer: Attention, steps: int = 150, seed: int = 0) -> float:
    """Train a classifier of the last word's new vector, idiom or literal, with the layer; → its accuracy.

    Each of the words appears in one idiom and one literal phrase, so only a pair of words tells them apart.  The static
    vectors are orthogonal and of equal length.  With identity matrices, every word then gives all its neighbours the same
    weight, whichever they are; a sum with fixed weights followed by a linear classifier cannot compute this exclusive or.
    """
    torch.manual_seed(seed)
    one_hot = torch.eye(len(IDIOM_WORDS))
    e = torch.stack([one_hot[[IDIOM_WORDS.index(word) for word in phrase]] for phrase in IDIOMS + LITERAL])  # (B, T, D)
    idiom = torch.tensor([1] * len(IDIOMS) + [0] * len(LITERAL))
    classify = nn.Linear(len(IDIOM_WORDS), 2)
    trained = [p for p in (*layer.parameters(), *classify.parameters()) if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(classify(layer(e)[:, -1]), idiom).backward()
        optimizer.step()
    with torch.no_grad():
        return float((classify(layer(e)[:, -1]).argmax(-1) == idiom).float().mean())


# ── The page ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def show(table: Tensor, rows: tuple[str, ...], columns: tuple[str, ...], title: str = "") -> None:
    """Print a small table of numbers."""
    print(f"   {title:<26}" + "".join(f"{column:>11}" for column in columns))
    for row, numbers in zip(rows, table.tolist(), strict=True):
        print(f"   {row:<26}" + "".join(f"{number:>11.2f}" for number in numbers))


def with_sums(table: Tensor) -> Tensor:
    """A table with the sum of each row as one more column: (R, C) → (R, C + 1)."""
    return torch.cat([table, table.sum(-1, keepdim=True)], -1)


def longest(e: Tensor) -> float:
    """The length of the longest vector of a sentence (T, D)."""
    return float(e.norm(dim=-1).max())


@torch.no_grad()
def show_static_and_contextual_vectors() -> None:
    """Print sections 1 and 2."""
    print("1  A static vector is an average over all uses of a word")
    show(average_meaning(APPLE_USES)[None], ("apple: 9k fruit, 1k tech",), ("taste", "technology"))
    print("   It is the same in every sentence, also in one about phones.\n")

    print("2  A weighted sum of the words around it gives `bank` a vector for each sentence: e_new = W e")
    sentences = (" ".join(S1), " ".join(S2))
    show(torch.stack([embed(S1)[1], embed(S2)[1]]), sentences, FEATURES, "bank, static")
    print("   cosine of the two: 1.00\n")
    versions = {"tables of the notes": (TABLE_S1[1], TABLE_S2[1]), "first sketch": (BANK_SKETCH_S1, BANK_SKETCH_S2)}
    for name, (first, second) in versions.items():
        new = torch.stack([torch.tensor(first) @ embed(S1), torch.tensor(second) @ embed(S2)])
        show(new, sentences, FEATURES, f"bank, {name}")
        print(f"   cosine of the two: {cosine(*new):.2f}, with weights {first} and {second}\n")


@torch.no_grad()
def show_weights() -> None:
    """Print section 3."""
    print("3  The weights are similarities, dot products through a softmax: softmax(e eᵀ) e")
    e = embed(S1)
    show(with_sums(e @ e.T), S1, (*S1, "sum"), "dot products e eᵀ")
    show(with_sums(self_attention(e)[1]), S1, (*S1, "sum"), "softmax(e eᵀ)")
    first, second = self_attention(embed(S1))[0][1], self_attention(embed(S2))[0][1]
    show(torch.stack([first, second]), (" ".join(S1), " ".join(S2)), FEATURES, "bank, self-attention")
    print(f"   cosine of the two: {cosine(first, second):.2f}\n")

    raw, soft = raw_attention(raw_attention(e)), self_attention(self_attention(e)[0])[0]
    print("   Dot products alone are not weights: they do not sum to one, and some may be negative.")
    print(
        f"   The longest vector of the sentence: {longest(e):.1f}; after two layers without softmax {longest(raw):,.0f}, ", end=""
    )
    print(f"with softmax {longest(soft):.1f}\n")


@torch.no_grad()
def show_layers() -> None:
    """Print section 4."""
    print("4  The same numbers from layers; all words at once, or one at a time")
    e = torch.stack([embed(S1), embed(S2)])  # (B, T, D)
    new, _ = self_attention(e)
    order = torch.tensor([2, 0, 1])
    same = {
        "attend(e, e, e, scale=1)": attend(e, e, e, scale=1.0)[0],
        "F.scaled_dot_product_attention": F.scaled_dot_product_attention(e, e, e, scale=1.0),
        "Attention with identity matrices": identity_attention(e.shape[-1])(e),
        "a loop over sentences and words": torch.stack([one_word_at_a_time(sentence) for sentence in e]),
        "words in another order, put back": self_attention(e[:, order])[0][:, order.argsort()],
    }
    for name, vectors in same.items():
        print(f"   {name:<36}largest difference {float((vectors - new).abs().max()):.1e}")
    print()


def show_idioms() -> None:
    """Print section 5."""
    print("5  Without parameters nothing is learned from data")
    fixed, learned = identity_attention(len(IDIOM_WORDS)).requires_grad_(False), learnable_attention(len(IDIOM_WORDS))
    for name, layer in (("W_q = W_k = W_v = I", fixed), ("W_q, W_k, W_v learned", learned)):
        print(f"   idiom or literal?   {name:<24}accuracy {learn_idioms(layer):.0%}")
    phrases = (" ".join(phrase) for phrase in itertools.chain(IDIOMS, LITERAL))
    print(f"   ({', '.join(phrases)}; the classifier is trained in both cases)")


def main() -> None:
    """Print the page."""
    show_static_and_contextual_vectors()
    show_weights()
    show_layers()
    show_idioms()


if __name__ == "__main__":
    main()
