"""Inference step by step: greedy and beam search, encoder and cache; published results.

Shapes: B sentences, T target tokens so far, V vocabulary.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn

from regard.data.text.batches import pad
from regard.data.text.tokenizer import BOS, EOS
from regard.decode import search
from regard.decode.fast import decoder
from regard.layers.tap import watch
from regard.models.fitting import build_without_memory
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.tasks.load import load
from regard.tasks.metrics import translation_scores
from regard.tasks.task import ScoreOptions
from regard.tasks.translation import Translator, translate_split
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, not_checkable
from regard.verify.measures import Points, count_flops
from regard.verify.plots import Curves, Heatmap

__all__: list[str] = []

ITALIAN = "tatoeba-en-it"
VOCAB, LIMIT = 7, 3  # of the model whose outputs are all listed


@cache
def shipped() -> Translator:
    """The English-Italian translator that ships with the package."""
    found = load("en-it", "cpu")
    assert isinstance(found, Translator)
    return found


def small(vocab: int = 40) -> Transformer:
    """A small Transformer with random weights, and probabilities that depend on the tokens before."""
    model = Transformer(TransformerConfig(vocab, 32, 2, 4, tied=False)).eval().requires_grad_(False)
    nn.init.normal_(model.output.weight, std=0.25)
    return model


def random_sources(model: Transformer, count: int, length: int = 6) -> Tensor:
    """Sentences of tokens that are not special: (B, S)."""
    return torch.randint(4, model.config.vocab, (count, length))


def greedy(model: Transformer, source: Tensor, length: int, eos: int = EOS) -> list[search.Hypothesis]:
    """Greedy outputs, whose score is the log-probability."""
    return search.greedy(decoder(model), source, torch.full((len(source),), length), bos=BOS, eos=eos, penalty=0.0)


def beam(model: Transformer, source: Tensor, length: int, width: int) -> list[list[search.Hypothesis]]:
    """The outputs of beam search, best first, whose score is the log-probability."""
    return search.beam(decoder(model), source, torch.full((len(source),), length), bos=BOS, eos=EOS, width=width, penalty=0.0)


@claim(58, "000 003", "I love you very much becomes Ti amo molto: at each step the decoder reads the words so far; its last "
       "position gives the next word, which is appended, until the end token.")  # fmt: skip
def i_love_you_very_much_is_translated_word_by_word() -> Iterator[Finding]:
    translator = shipped()
    special, model = translator.tokenizer.special, cast(Transformer, translator.model)
    source = pad(translator.encode(["I love you very much"]), special)
    [answer] = translator.translate(["I love you very much"], beam=1, tokens=20)
    read, rows = torch.tensor([[special.bos]]), list[Tensor]()
    with torch.no_grad():
        while read[0, -1] != special.eos and read.shape[1] < 20:
            probabilities = model(source, read)[0, -1].softmax(-1)  # the last position, without a cache
            rows.append(probabilities)
            read = torch.cat((read, probabilities.argmax().view(1, 1)), 1)
    steps = read[0, 1:].tolist()
    words = [*translator.tokenizer.ids_to_tokens(steps[:-1]), "<EOS>" if steps[-1] == special.eos else "…"]
    yield equals("words of steps 1, 2 and 3", [word.strip("▁").lower() for word in words[:3]], ["ti", "amo", "molto"])
    yield equals("last step (step 4 writes the period)", words[-1], "<EOS>")
    yield equals("answer of our search, which has a cache, against these steps", answer.ids, steps[:-1])
    yield equals("its text", answer.text, "Ti amo molto.")
    table = torch.stack(rows)[:, steps]
    yield Heatmap("I love you very much", "token", "time step", table, [str(n + 1) for n in range(len(steps))], words,
                  "probability")  # fmt: skip


@claim(58, "000 003", "The encoder runs once; all time steps use its output of the first.")
def encoder_runs_once_for_all_steps() -> Iterator[Finding]:
    model, calls = small(), list[int]()
    next(iter(model.encoder)).register_forward_hook(lambda *call: calls.append(1))
    source = random_sources(model, 3)
    [first, *_] = greedy(model, source, 12, eos=-1)
    yield equals("tokens of each output", len(first.tokens), 12)
    yield equals("calls of the encoder", len(calls), 1)
    beam(model, source, 12, 4)
    yield equals("calls of the encoder by a beam search with 4 beams", len(calls) - 1, 1)


@claim(58, "000 003", "If the decoder's input has two, three, four tokens, the second, third, fourth softmax is taken.")
def a_step_with_a_cache_gives_the_logits_of_the_last_position() -> Iterator[Finding]:
    model, target = small(), torch.cat((torch.full((2, 1), BOS), torch.randint(4, 40, (2, 7))), 1)
    source = random_sources(model, 2)
    steps = decoder(model)
    state, found = steps.start(source), list[Tensor]()
    with watch(model) as weights:
        for token in target.T:
            logits, state = steps.step(token, state)
            found.append(logits)
    expected = [model(source, target[:, : length + 1])[:, -1] for length in range(8)]
    yield close("logits of 8 cached steps, against the last position of 8 calls without a cache", torch.stack(found),
                torch.stack(expected), within=1e-4)  # fmt: skip
    shapes = [tuple(call.shape[2:]) for call in weights["decoder.0.attn"]]
    yield equals("queries and keys of each step", shapes, [(1, length) for length in range(1, 9)])


@claim(58, "000 003", "Generation ends when the end token is generated or a maximum length is reached.")
def generation_ends_at_the_end_token_or_at_the_limit() -> Iterator[Finding]:
    model, length = small(), 9
    source = random_sources(model, 20)
    endless = greedy(model, source, length, eos=-1)
    yield equals("lengths of 20 outputs that no token ends, at most 9", {len(output.tokens) for output in endless}, {length})
    ends = {token for output in endless for token in output.tokens[2:6]}  # take one that occurs
    token = max(ends, key=lambda token: sum(token in output.tokens for output in endless))
    cut = [output.tokens[: output.tokens.index(token)] if token in output.tokens else output.tokens for output in endless]
    yield at_least("tokens that are cut off", 20 * length - sum(map(len, cut)), 1)
    found = [output.tokens for output in greedy(model, source, length, eos=token)]
    yield equals("outputs with this end token, equal to those above cut before it", sum(map(list.__eq__, found, cut)), 20)


@claim(59, "000 003", "Beam search keeps the B most probable sequences: each step evaluates all next words of each, and keeps "
       "the best B of all. With B = 1 it is greedy search.")  # fmt: skip
def beam_search_keeps_the_most_probable_sequences() -> Iterator[Finding]:
    model = small()
    source = random_sources(model, 8)
    alone = [best.tokens for best, *_ in beam(model, source, 8, 1)]
    yield equals("8 outputs with B = 1, against greedy search", alone, [output.tokens for output in greedy(model, source, 8)])
    found = [[output.tokens for output in outputs] for outputs in endless_beam(model, source[:4], 5, 3)]
    expected = [plain_beam(model, sentence[None], 5, 3) for sentence in source[:4]]
    yield equals("the 3 most probable sequences of 5 tokens, of 4 sentences, against a plain loop", found, expected)


def endless_beam(model: Transformer, source: Tensor, length: int, width: int) -> list[list[search.Hypothesis]]:
    """Beam search in which no token ends an output."""
    return search.beam(decoder(model), source, torch.full((len(source),), length), bos=BOS, eos=-1, width=width)


def plain_beam(model: Transformer, source: Tensor, length: int, width: int) -> list[list[int]]:
    """The same of one sentence (1, S), sequence by sequence, without a cache."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(length):
        longer = list[tuple[float, list[int]]]()
        for score, tokens in beams:
            logprobs = model(source, torch.tensor([[BOS, *tokens]]))[0, -1].log_softmax(-1).tolist()
            longer += [(score + logprob, [*tokens, token]) for token, logprob in enumerate(logprobs)]
        beams = sorted(longer, reverse=True)[:width]
    return [tokens for _, tokens in beams]


@claim(59, "000 003", "Greedy search does not find the most probable sentence; beam search finds better ones.")
def wider_beams_find_more_probable_sentences() -> Iterator[Finding]:
    models = [small(VOCAB) for _ in range(16)]
    sources = [random_sources(model, 1) for model in models]
    best = torch.stack([most_probable(model, source) for model, source in zip(models, sources, strict=True)])
    found = {width: torch.tensor([
        beam(model, source, LIMIT, width)[0][0].score or 0.0 for model, source in zip(models, sources, strict=True)
    ]) for width in (1, 2, 4, 60)}  # fmt: skip
    means = [(width, (scores - best).mean().item()) for width, scores in found.items()]
    yield at_most("log-probability of greedy outputs less that of the best, mean of 16 models, nats", means[0][1], -0.05)
    yield at_least("gain by 4 beams, nats", means[2][1] - means[0][1], 0.05)
    yield close("with 60 beams, log-probabilities against a search through all outputs", found[60], best, within=1e-4)
    yield Curves("How probable is the output?", "beam size B", "mean log p(output) - log p(best), nats", {"beam search": means},
                 log_x=True)  # fmt: skip


def most_probable(model: Transformer, source: Tensor) -> Tensor:
    """The log-probability of the most probable output of up to LIMIT tokens, of all there are: source (1, S) → ()."""
    every = torch.tensor(list(product(range(VOCAB), repeat=LIMIT)))  # (V ** T, T)
    read = torch.cat((torch.full((len(every), 1), BOS), every[:, :-1]), 1)
    after_end = (every == EOS).cumsum(1) - (every == EOS).long() > 0
    logprobs = model(source.expand(len(every), -1), read).log_softmax(-1).gather(2, every[:, :, None])[:, :, 0]
    return logprobs.masked_fill(after_end, 0.0).sum(1).max()


@claim(59, "000 003", "Greedy search usually does not perform very well; beam search generally performs better.", slow=True,
       data=(ITALIAN,), condition="for the comparison: a beam of 5 gains 0.5 to 4 BLEU; greedy search reaches at least 95 % of "
       "the BLEU of a beam of 5")  # fmt: skip
def beams_translate_better_than_greedy_search() -> Iterator[Finding]:
    bleu = Points()
    for width in (1, 2, 5):
        found = translate_split(shipped(), "test", ScoreOptions(beam_size=width), ITALIAN)
        score, *_ = translation_scores(found.answers, found.references, tokenized=False)
        bleu.append((width, score.value))
    yield at_least(f"BLEU of greedy search, {score.signature}", bleu[0][1], 50)
    yield between("gain by a beam of 5, BLEU", bleu[2][1] - bleu[0][1], 0.5, 4)
    yield at_least("BLEU of greedy search, as a fraction of that of a beam of 5", bleu[0][1] / bleu[2][1], 0.95)
    yield Curves("English to Italian, Tatoeba", "beam size B", "BLEU of the test set", {"en-it": bleu})


@claim(64, "001", "Training cost 3.3 · 10¹⁸ FLOPs for the base model and 2.3 · 10¹⁹ for the big one.",
       condition="for what 8 GPUs of 9.5 TFLOPS can compute in the 12 and 84 hours that the paper names; the products of our "
       "model, in as many steps, are 0.3 of it for the base model and 0.4 for the big one")  # fmt: skip
def training_cost_is_the_time_of_the_gpus() -> Iterator[Finding]:
    model, source = small(), torch.randint(4, 40, (8, 25))
    model.requires_grad_(True)
    both = count_flops(lambda: model.features(source, source).sum().backward())
    times = both / count_flops(lambda: model.features(source, source))
    yield between("FLOPs of a forward and a backward pass, over those of the first", times, 2.9, 3.1)
    tokens = 25_000  # of a batch, in each language, in sentences of 25
    for name, steps, printed, low, high in (("base", 100_000, 3.3e18, 0.27, 0.31), ("big", 300_000, 2.3e19, 0.4, 0.44)):
        counted = times * forward_flops(name) * tokens / 25 * steps
        yield between(f"{name}: FLOPs of {steps:,} steps of our model, over the table", counted / printed, low, high)


def forward_flops(size: str) -> int:
    """Of a pair of sentences of 25 tokens each."""
    model, tokens = build_without_memory(lambda: Transformer(SIZES[size])), torch.ones(1, 25, dtype=torch.long, device="meta")
    with torch.no_grad(), torch.device("meta"):
        return count_flops(lambda: model(tokens, tokens))


not_checkable(
    64, "001", "BLEU of ten systems on WMT 2014, among them 28.4 for English to German by the big Transformer.",
    name="bleu_of_ten_systems_on_wmt", chapter=__name__,
    why="the figures are quoted from papers; to measure one, a model trains for days on 8 GPUs, with 4.5 or 36 million pairs",
)  # fmt: skip

not_checkable(
    "c16", "001", "The big Transformer reaches a BLEU of 41.8 for English to French.",
    name="english_to_french_bleu_of_the_big_model", chapter=__name__,
    why="the paper's final version prints 41.8, its first versions and older lists of results 41.0; a quotation, which only the "
        "weights of the authors could decide",
)  # fmt: skip
