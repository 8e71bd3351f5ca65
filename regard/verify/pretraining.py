"""Decoder-only, encoder-only and encoder-decoder models: GPT, BERT, T5, ELMo, and any kind of token.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.audio.features import log_mel
from regard.data.text.batches import PairBatch, pad
from regard.data.text.config import TextData
from regard.data.text.masking import corrupt_spans, mask_tokens
from regard.data.text.splits import find_split
from regard.data.text.tokenizer import BOS, EOS, train_tokenizer
from regard.data.text.windows import BoundedBatch, MaskedBatch, WindowBatch
from regard.decode import search
from regard.decode.fast import decoder
from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm
from regard.layers.tap import watch
from regard.models.bert import BERT, BERTConfig
from regard.models.conformer import Conformer, ConformerConfig
from regard.models.elmo import ELMo, ELMoConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.t5 import T5, T5Config
from regard.models.vit import ViT, ViTConfig
from regard.models.word2vec import Word2Vec, Word2VecConfig
from regard.tasks.bidirectional_lm import BidirectionalModel, bidirectional_loss
from regard.tasks.language_model import CausalModel, next_token_loss
from regard.tasks.masked_lm import MaskedModel, masked_token_loss
from regard.tasks.translation import EncoderDecoder, sequence_loss
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals
from regard.verify.measures import Points, depends_on, minimize
from regard.verify.plots import Curves, Heatmap

__all__: list[str] = []

MASK, SYMBOLS, ANSWERS = 4, 3, 9  # 0 to 4 are special tokens, then 3 symbols, then an answer for each pair of them

BATCH = 32

Loss = Callable[[], tuple[Tensor, Tensor]]


def train(model: nn.Module, loss: Loss, steps: int, lr: float) -> Points:
    """The loss of each step, summed over its predictions."""
    return minimize(model.parameters(), lambda: loss()[0], steps, lr)


def reach(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Which input vectors (T, ·) each output vector (S, ·) depends on: booleans (S, T)."""
    return torch.stack([depends_on(output, inputs).any(-1) for output in outputs])


def embedded(layer: nn.Module, run: Callable[[], Tensor]) -> tuple[list[Tensor], Tensor]:
    """What an embedding gave in each of its calls, a leaf of the graph, and what the model made of it."""
    found = list[Tensor]()

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        found.append(output[0].detach().requires_grad_())
        return found[-1][None]

    hook = layer.register_forward_hook(keep)
    try:
        return found, run()[0]
    finally:
        hook.remove()


# Training decides what a network does


def fill_in(rule: Callable[[Tensor, Tensor], Tensor]) -> MaskedBatch:
    """Rows of 9 symbols, one of them masked; what it was follows from its left and right neighbours by a rule."""
    truth = torch.randint(SYMBOLS, (BATCH, 9))
    place = torch.randint(1, 8, (BATCH, 1))
    answer = rule(truth.gather(1, place - 1), truth.gather(1, place + 1))
    truth = (truth + MASK + 1).scatter(1, place, answer + MASK + 1 + SYMBOLS)
    chosen = torch.zeros(BATCH, 9, dtype=torch.bool).scatter(1, place, True)
    return MaskedBatch(truth.masked_fill(chosen, MASK), chosen, truth)


@claim(65, "001", "Architecture + training = model: shown examples that need both sides, a network learns bidirectional "
       "attention; shown only examples that need the right side, it may behave more unidirectionally.")  # fmt: skip
def examples_decide_where_a_network_attends() -> Iterator[Finding]:
    start = BERT(BERTConfig(MASK + 1 + SYMBOLS + ANSWERS, 64, 1, 2, max_len=9, dropout=0.0, attention_dropout=0.0))
    for table, spread in ((start.positions.table, 0.2), (start.tokens.weight, 0.2), (start.blocks[0].attn.qkv.weight, 64**-0.5)):
        nn.init.normal_(table, std=spread)  # instead of heads that begin with their neighbors
    rules: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "both sides": lambda left, right: SYMBOLS * left + right, "the right side": lambda left, right: (SYMBOLS + 1) * right,
    }  # fmt: skip
    lines, effects, looks = dict[str, Points](), Points(), list[Tensor]()
    for name, rule in rules.items():
        model = copy.deepcopy(start)
        lines[name] = train(model, partial(filling_loss, model, rule), 130, 0.003)
        shown = torch.randint(MASK + 1, MASK + 1 + SYMBOLS, (BATCH, 9))
        shown[:, 4] = MASK
        with torch.no_grad(), watch(model) as weights:
            effects.append((change_of_answer(model, shown, 3), change_of_answer(model, shown, 5)))
        looks.append(weights["blocks.0.attn"][0].mean((0, 1))[4])
    (both_left, both_right), (right_left, right_right) = effects
    yield at_least("trained on both sides: change of the answer with the left neighbor, 0 to 1", both_left, 0.7)
    yield at_least("trained on both sides: change of the answer with the right neighbor", both_right, 0.7)
    yield at_least("trained on the right side: change of the answer with the right neighbor", right_right, 0.7)
    yield at_most("trained on the right side: change of the answer with the left neighbor", right_left, 0.1)
    table, places = torch.stack(looks), [f"{offset:+d}" for offset in range(-4, 5)]
    yield at_least("trained on both sides: attention to the left neighbor", table[0, 3].item(), 0.2)
    yield at_least("trained on both sides: attention to the right neighbor", table[0, 5].item(), 0.2)
    yield at_least("trained on the right side: attention to the right neighbor", table[1, 5].item(), 0.35)
    yield at_most("trained on the right side: attention to the left neighbor", table[1, 3].item(), 0.15)
    yield Heatmap("Attention of a masked token", "place, relative to it", "trained on examples that need", table, list(rules),
                  places, "weight, mean of the heads")  # fmt: skip
    yield Curves("Filling in masked tokens", "training step", "loss in nats a batch", lines)


def filling_loss(model: BERT, rule: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of a batch of examples of a rule."""
    return masked_token_loss(cast(MaskedModel, model), fill_in(rule), 0.0)


def change_of_answer(model: BERT, shown: Tensor, place: int) -> float:
    """How much of the probability moves to other answers at place 4 when the symbol of another place becomes the next."""
    other = shown.clone()
    other[:, place] = (other[:, place] - MASK) % SYMBOLS + MASK + 1
    before, after = (model(text)[:, 4].softmax(-1) for text in (shown, other))
    return ((before - after).abs().sum(-1) / 2).mean().item()


# GPT, BERT, T5


@claim(66, "001", "GPT is decoder-only, BERT is encoder-only, T5 has both: GPT reads from left to right, BERT reads both sides.")
def gpt_reads_the_past_bert_both_sides_and_t5_both_ways() -> Iterator[Finding]:
    ids, past, all_seen = torch.randint(5, 20, (1, 6)), torch.ones(6, 6).tril().bool(), torch.ones(6, 6).bool()
    gpt, bert = GPT(GPTConfig(20, 32, 2, 2, max_len=8)).eval(), BERT(BERTConfig(20, 32, 2, 2, max_len=8)).eval()
    t5 = T5(T5Config(20, 32, 2, 2, head_dim=16, mlp_dim=64)).eval()
    [x], output = embedded(gpt.embed, lambda: gpt(ids))
    seen = {"GPT": reach(x, output)}
    [x], output = embedded(bert.tokens, lambda: bert(ids))
    seen["BERT"] = reach(x, output)
    [source, target], output = embedded(t5.tokens, lambda: t5(ids, ids))
    seen |= {"T5, source": reach(source, output), "T5, target": reach(target, output)}
    for (name, found), expected in zip(seen.items(), (past, all_seen, all_seen, past), strict=True):
        side = "all tokens" if expected.all() else "itself and those before"
        yield equals(f"{name}: each output depends on {side}, 6 tokens", int((found == expected).sum()), 36)
    stacks = {name: [part for part in ("blocks", "encoder", "decoder") if hasattr(model, part)]
              for name, model in (("GPT", gpt), ("BERT", bert), ("T5", t5))}  # fmt: skip
    yield equals("stacks", stacks, {"GPT": ["blocks"], "BERT": ["blocks"], "T5": ["encoder", "decoder"]})


@claim(66, "001", "GPT is trained to predict the next word of [START] The cat sat …")
def gpt_predicts_each_next_word() -> Iterator[Finding]:
    model = GPT(GPTConfig(20, 32, 2, 2, max_len=8, dropout=0.0, attention_dropout=0.0))
    text = torch.cat((torch.full((3, 1), BOS), torch.randint(4, 20, (3, 7))), 1)
    loss, _ = next_token_loss(cast(CausalModel, model), WindowBatch(text), 0.0)
    one_by_one = sum(F.cross_entropy(model(text[:, :stop])[:, -1], text[:, stop], reduction="sum").item() for stop in range(1, 8))
    yield close("loss of 3 texts of 7 words after [START], against one prediction after the other", loss.item(), one_by_one,
                rel=1e-4)  # fmt: skip


@claim(66, "001", "BERT is trained to restore words replaced by [MASK]: it predicts these, not the others.")
def bert_predicts_masked_tokens() -> Iterator[Finding]:
    vocab, special = 1000, [0, 1, 2, 3, MASK]
    text = torch.randint(5, vocab, (300, 128)).numpy()
    shown, chosen = mask_tokens(text, special, MASK, vocab, np.random.default_rng(torch.initial_seed()))
    picked, original = shown[chosen], text[chosen]
    yield close("fraction of the tokens that are predicted", chosen.mean().item(), 0.15, within=0.01)
    yield close("of these: replaced by [MASK]", (picked == MASK).mean().item(), 0.8, within=0.03)
    yield close("of these: left as they are", (picked == original).mean().item(), 0.1, within=0.03)
    yield close("of these: replaced by another token", ((picked != MASK) & (picked != original)).mean().item(), 0.1, within=0.03)
    yield equals("other tokens that change", int((shown != text)[~chosen].sum()), 0)
    model = BERT(BERTConfig(vocab, 32, 1, 2, max_len=128, dropout=0.0, attention_dropout=0.0))
    batch = MaskedBatch(*(torch.from_numpy(part[:4]) for part in (shown, chosen, text)))
    loss, _ = masked_token_loss(cast(MaskedModel, model), batch, 0.0)
    expected = F.cross_entropy(model(batch.shown)[batch.chosen], batch.truth[batch.chosen], reduction="sum")
    yield close("loss, against the cross-entropy of the chosen tokens alone", loss.item(), expected.item(), rel=1e-4)


@claim(66, "001", "T5, an encoder-decoder, is pre-trained on text: it restores what is cut out of it.")
def t5_restores_spans_that_are_cut_out() -> Iterator[Finding]:
    sentinels, random = [90, 91, 92, 93, 94, 95, 96, 97, 98, 99], np.random.default_rng(torch.initial_seed())
    texts = torch.randint(5, 90, (200, 100)).numpy()
    pairs = [tuple(part.tolist() for part in corrupt_spans(text, sentinels, random)) for text in texts]
    cut = [len(target) - sum(token in sentinels for token in target) for _, target in pairs]
    spans = [sum(token in sentinels for token in source) for source, _ in pairs]
    yield close("fraction of the tokens that are cut out", sum(cut) / texts.size, 0.15, within=0.005)
    yield close("tokens of a span, mean", sum(cut) / max(1, sum(spans)), 3, within=0.1)
    yield equals("texts that source and target give back, of 200",
                 sum(put_back(source, target, sentinels) == text.tolist() for (source, target), text in
                     zip(pairs, texts, strict=True)), 200)  # fmt: skip
    touching = [first for source, _ in pairs for first, second in pairwise(source) if {first, second} <= {*sentinels}]
    yield equals("spans that touch the next one", len(touching), 0)


def put_back(source: list[int], target: list[int], sentinels: list[int]) -> list[int]:
    """The text whose spans were cut out: each sentinel of the source, replaced by what follows it in the target."""
    spans = dict[int, list[int]]()
    for token in target:
        if token in sentinels:
            spans[token] = span = []
        else:
            span.append(token)
    return [token for place in source for token in spans.get(place, [place])]


@claim(66, "001", "T5 has every task as text to text, named by a prefix such as Translate EN-DE: before the source.")
def task_prefixes_are_part_of_the_source() -> Iterator[Finding]:
    split = find_split(TextData(source="copy,reverse", prefixed=True, pairs=50), "train")
    prefixes = {"copy: ": lambda text: text, "reverse: ": lambda text: text[::-1]}
    pairs = list(split.pairs())
    for prefix, task in prefixes.items():
        mine = [(source.removeprefix(prefix), target) for source, target in pairs if source.startswith(prefix)]
        yield equals(f"sources that begin with {prefix!r}", len(mine), 50)
        yield equals(
            "of these: pairs whose target is that of the task", sum(task(source) == target for source, target in mine), 50
        )


LETTERS = "abcdefgh"
OTHERS = dict(zip(LETTERS, "ijklmnop", strict=True))  # their translations
TASKS: dict[str, Callable[[str], str]] = {
    "translate": lambda letters: " ".join(OTHERS[letter] for letter in letters),
    "summarize": lambda letters: f"{letters[0]} {letters[-1]}",
    "toxic": lambda letters: "yes" if "h" in letters else "no",
}


@claim(66, "001", "One T5 translates, summarizes and tells whether a text is toxic; the prefix tells it which.", slow=True)
def one_t5_learns_three_tasks_by_their_prefixes() -> Iterator[Finding]:
    tokenizer = train_tokenizer([" ".join([*TASKS, ":", *OTHERS, *OTHERS.values(), "yes", "no"])], "words", 100)
    model = T5(T5Config(tokenizer.vocab, 64, 2, 4, 16, 128, dropout=0.0, attention_dropout=0.0))

    def batch(texts: list[str]) -> PairBatch:
        sources = tokenizer.encode([f"{task}: {' '.join(text)}" for text in texts for task in TASKS])
        targets = tokenizer.encode([task(text) for text in texts for task in TASKS.values()])
        return PairBatch(pad(sources, tokenizer.special), pad([[BOS, *target] for target in targets], tokenizer.special))

    def random_texts(count: int) -> list[str]:
        return ["".join(LETTERS[index] for index in row) for row in torch.randint(8, (count, 5)).tolist()]

    losses = train(model, lambda: sequence_loss(cast(EncoderDecoder, model), batch(random_texts(32)), 0.0), 700, 0.003)
    texts = random_texts(50)
    model.eval().requires_grad_(False)
    source, limits = batch(texts).source, torch.full((150,), 8)
    found = [tokenizer.decode(output.tokens) for output in search.greedy(decoder(model), source, limits, bos=BOS, eos=EOS)]
    for index, (name, task) in enumerate(TASKS.items()):
        right = sum(answer == task(text) for answer, text in zip(found[index::3], texts, strict=True))
        yield at_least(f"{name}: answers to 50 new texts that are right", right, 40)
    yield at_least("texts of 50 that get three different answers, by the prefix alone",
                   sum(len({*found[3 * row : 3 * row + 3]}) == 3 for row in range(50)), 40)  # fmt: skip
    yield Curves("One model, three tasks", "training step", "loss in nats a batch", {"T5": losses})


# Words in context


def small_elmo(vocab: int) -> ELMo:
    """ELMo with a vector for each word."""
    return ELMo(ELMoConfig(vocab, "tokens", 64, 32, 2, dropout=0.0))


@claim(67, "001", "ELMo: h_t = [→h_t; ←h_t], where →h_t has read the words up to t, and ←h_t those from t on.")
def elmo_joins_a_reader_of_the_past_and_one_of_the_future() -> Iterator[Finding]:
    model, ids = small_elmo(20), torch.randint(4, 20, (1, 6))
    [x], top = embedded(model.inputs, lambda: model.layers(ids)[-1])
    forward, backward = reach(x, top[:, :32]), reach(x, top[:, 32:])
    yield equals("forward half of 6 vectors: words that each depends on", forward.sum(1).tolist(), [1, 2, 3, 4, 5, 6])
    yield equals("they are those up to its own", bool((forward == torch.ones(6, 6).tril().bool()).all()), True)
    yield equals("backward half: those from its own on", bool((backward == torch.ones(6, 6).triu().bool()).all()), True)
    [x], context = embedded(model.inputs, lambda: model.encode(ids))
    yield equals("contextual vectors: each depends on all words", bool(reach(x, context).all()), True)
    yield Heatmap("Words that the forward half of a vector depends on", "word", "vector", forward.float(), z="1: depends on it")


@claim(
    67, "001", "Word embeddings became contextualized word embeddings (ELMo, BERT): the vector of a word depends on its sentence."
)
def contextual_vectors_tell_two_meanings_apart() -> Iterator[Finding]:
    model = small_elmo(4 + 2 * 6 + 1)
    bank = 16

    def sentences(count: int) -> tuple[Tensor, Tensor]:
        """Five words of money (4 to 9) or of rivers (10 to 15) around bank, and which."""
        sense = torch.randint(2, (count, 1))
        words = torch.randint(6, (count, 6)) + 4 + 6 * sense
        return words.scatter(1, torch.randint(1, 5, (count, 1)), bank), sense[:, 0]

    def loss() -> tuple[Tensor, Tensor]:
        words, _ = sentences(32)
        ends = F.pad(F.pad(words, (1, 0), value=1), (0, 1), value=2)
        return bidirectional_loss(cast(BidirectionalModel, model), BoundedBatch(ends, words), 0.0)

    losses = train(model, loss, 60, 0.01)
    words, sense = sentences(60)
    with torch.no_grad():
        contextual = model.encode(words)[words == bank]
        static = Word2Vec(Word2VecConfig(17, 64)).input(words)[words == bank]
    similar = F.normalize(contextual - contextual.mean(0), dim=-1)
    nearest = (similar @ similar.T).fill_diagonal_(-1).argmax(-1)
    yield equals("premise, a lookup: different vectors of bank in 60 sentences, word2vec", len(static.unique(dim=0)), 1)
    yield at_least("different vectors of bank in 60 sentences, ELMo", len(contextual.unique(dim=0)), 50)
    yield at_least("sentences whose nearest bank has the same meaning, of 60", int((sense[nearest] == sense).sum()), 54)
    yield Curves("Forward and backward language model", "training step", "loss in nats a batch", {"ELMo": losses})


# Anything is a token


@claim(
    68, "001", "You can tokenize anything: cut the input into chunks and project each to a vector. Then a Transformer reads them."
)
def text_images_and_sound_become_vectors_for_one_block() -> Iterator[Finding]:
    block = EncoderBlock(Attention(32, 2), MLP(32, 64), partial(PreNorm, 32, 0.0))
    gpt, vit = GPT(GPTConfig(20, 32, 1, 2, max_len=12)).eval(), ViT(ViTConfig(64, 16, dim=32, depth=1, heads=2, classes=2))
    conformer = Conformer(ConformerConfig(dim=32, depth=1, heads=2)).eval()
    one_hot = F.one_hot(torch.randint(20, (10,)), 20).float().requires_grad_()
    image, sound = torch.randn(3, 64, 64).requires_grad_(), torch.randn(8000).requires_grad_()
    patches = vit.embed(vit.patches(image[None]))[0]
    tokens = {
        "10 words of text": (one_hot, one_hot @ gpt.embed.tokens.weight, 10),
        "an image of 64 × 64 pixels": (image, patches, 16),
        "half a second of sound": (sound, conformer.subsample(log_mel(sound)[None], None)[0], 13),
    }
    for name, (chunks, vectors, count) in tokens.items():
        fraction = depends_on(vectors[len(vectors) // 2], chunks).float().mean().item()
        yield equals(f"{name}: tokens and their width", tuple(vectors.shape), (count, 32))
        yield at_most(f"{name}: fraction of it that one token is made of", fraction, 0.2)
        seen = depends_on(block(vectors[None])[0, 0], vectors).any(-1)
        yield equals(f"{name}: tokens that its first vector depends on after a block, the same for all three", int(seen.sum()),
                     count)  # fmt: skip
    conv = F.conv2d(image[None], vit.embed.weight.view(32, 3, 16, 16), vit.embed.bias, stride=16).flatten(2).transpose(1, 2)
    yield close("vectors of the image, against a convolution with kernel and stride 16", patches, conv[0], within=1e-4)
