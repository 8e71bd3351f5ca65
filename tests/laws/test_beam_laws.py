"""Laws of beams that share one cache: each follows its own history, however beams are reordered and sentences leave.

As in test_decoder_laws.py the weights are random, large and float64, so that a broken law is far above the tolerance; here
different sentences also get different outputs.
"""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.decode import search
from regard.decode.fast import DecoderState, decoder
from regard.decode.search import Hypothesis, beam, greedy
from regard.decode.step import Decoder, reorder
from regard.models.transformer import Transformer, TransformerConfig

PAD, BOS, VOCAB = 0, 1, 11

law = settings(max_examples=40)
seeds, sizes = st.integers(0, 10_000), st.integers(1, 6)


def tiny(norm: str, positions: str, tied: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            vocab=VOCAB, dim=8, depth=2, heads=2, mlp_ratio=2, norm=norm, positions=positions, max_len=24, tied=tied
        )
    )
    for part in model.modules():  # norms keep their values: the tokens, not a bias, decide the output
        for p in () if isinstance(part, nn.LayerNorm) else part.parameters(recurse=False):
            nn.init.normal_(p, std=1.0)
    return model.double().eval()


KINDS = pytest.mark.parametrize(
    "model", [tiny("pre", "sinusoid", True), tiny("post", "learned", False)], ids=["pre-sinusoid", "post-learned"]
)


def padded(sources: Iterable[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(sources), batch_first=True, padding_value=PAD)


class Beams:
    """Beams decoded together, and for each its source and history in plain lists."""

    def __init__(self, model: Transformer, state: DecoderState, beams: list[list[tuple[Tensor, list[int]]]]):
        self.model, self.state, self.beams = model, state, beams  # beams: B lines of W

    def extend(self, random: torch.Generator) -> "Beams":
        """Extend each beam by a token; its logits equal those of its history alone, without a cache."""
        sources, before = zip(*(pair for line in self.beams for pair in line), strict=True)
        token = torch.randint(1, VOCAB, (len(sources),), generator=random)
        histories = [[*history, now] for history, now in zip(before, token.tolist(), strict=True)]
        with torch.no_grad():
            logits, state = decoder(self.model).step(token, self.state)
            wanted = self.model(padded(sources), torch.tensor(histories))[:, -1]
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-9)
        after, width = list(zip(sources, histories, strict=True)), len(self.beams[0])
        return Beams(self.model, state, [after[i : i + width] for i in range(0, len(after), width)])

    def reorder(self, rows: Tensor) -> "Beams":
        """Select beams: rows (R,), each its own sentence from now on, or (B, W)."""
        rows_flat = [pair for line in self.beams for pair in line]
        lines = rows[:, None] if rows.ndim == 1 else rows
        return Beams(self.model, reorder(self.state, rows), [[rows_flat[row] for row in line] for line in lines.tolist()])


def start(model: Transformer, seed: int, batch: int, s: int) -> Beams:
    """Sentences of several lengths, one beam each, stored without padding."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, s + 1, (batch,), generator=random).tolist()
    sources = [torch.randint(1, VOCAB, (length,), generator=random) for length in lengths]
    with torch.no_grad():
        return Beams(model, decoder(model).start(padded(sources)), [[(source, [])] for source in sources])


def rows_of(sentences: Tensor, width: int, more: int, random: torch.Generator) -> Tensor:
    """Random parents: for each of the sentences `more` rows of its `width`, (B, W)."""
    return sentences[:, None] * width + torch.randint(width, (len(sentences), more), generator=random)


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, widths=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_beams_decoded_together_equal_each_history_decoded_alone(model, seed, batch, s, widths):
    random, line, width = torch.Generator().manual_seed(seed), start(model, seed, batch, s), 1
    for more in widths:  # as many beams as before, more or fewer
        line = line.reorder(rows_of(torch.arange(batch), width, more, random)).extend(random)
        width = more


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 4), s=sizes, width=st.integers(1, 4), data=st.data())
def test_sentences_may_leave_and_the_others_continue_in_any_order(model, seed, batch, s, width, data):
    random = torch.Generator().manual_seed(seed)
    line = start(model, seed, batch, s).reorder(torch.arange(batch)[:, None].expand(-1, width)).extend(random)
    for _ in range(3):
        staying = data.draw(st.lists(st.integers(0, len(line.beams) - 1), max_size=len(line.beams), unique=True))
        line = line.reorder(rows_of(torch.tensor(staying, dtype=torch.long), width, width, random))
        if not staying:
            break
        line = line.extend(random)


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, width=st.integers(2, 4), steps=st.integers(0, 3), data=st.data())
def test_single_rows_of_beams_continue_as_separate_sentences(model, seed, batch, s, width, steps, data):
    random = torch.Generator().manual_seed(seed)
    line = start(model, seed, batch, s).reorder(torch.arange(batch)[:, None].expand(-1, width))
    for _ in range(steps):
        line = line.extend(random).reorder(rows_of(torch.arange(batch), width, width, random))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch * width - 1), min_size=1, max_size=5)))
    line = line.reorder(rows)
    assert [len(beams) for beams in line.beams] == [1] * len(rows)
    line.extend(random).extend(random).reorder(rows_of(torch.arange(len(rows)), 1, 3, random)).extend(
        random
    )  # also as beams again


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, data=st.data())
def test_a_state_can_be_reordered_and_continued_several_times(model, seed, batch, s, data):
    random = torch.Generator().manual_seed(seed)
    made = [start(model, seed, batch, s).extend(random)]
    for _ in range(data.draw(st.integers(1, 6))):
        line = made[data.draw(st.integers(0, len(made) - 1))]
        width = len(line.beams[0])
        sentences = torch.tensor(data.draw(st.lists(st.integers(0, len(line.beams) - 1), min_size=1, max_size=4)))
        more = data.draw(st.integers(0, 3))
        rows = rows_of(sentences, width, more or 1, random)
        made.append(line.reorder(rows if more else rows[:, 0]).extend(random))
    for line in made:
        line.extend(random)


def test_beams_that_swap_parents_copy_no_cache_and_no_memory():
    model, random = tiny("pre", "sinusoid", True), torch.Generator().manual_seed(0)
    line = start(model, 0, 3, 5).reorder(torch.arange(3)[:, None].expand(-1, 4)).extend(random)
    addresses = [x.data_ptr() for part in line.state.cache.blocks for x in part.all()]
    for _ in range(3):
        line = line.reorder(rows_of(torch.arange(3), 4, 4, random)).extend(random)
    assert [x.data_ptr() for part in line.state.cache.blocks for x in part.all()] == addresses
    assert {len(x) for part in line.state.memory for x in part} == {3}  # sentences, not beams


# Finished sentences leave at once, later, or only with the last


class Flat:
    """A model with flatter logits, so that a later output may still score better."""

    def __init__(self, model: Transformer):
        self.decoder = decoder(model)
        self.start = self.decoder.start

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        logits, state = self.decoder.step(token, state)
        return logits / 10, state


def outputs(model: Decoder, fraction: float, source: Tensor, limits: Tensor, width: int, **options) -> list[list[Hypothesis]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHRINK", fraction)
        return [
            *([hypothesis] for hypothesis in greedy(model, source, limits, **options)),
            *beam(model, source, limits, width=width, **options),
        ]


@KINDS
@law
@given(seed=seeds, limits=st.lists(st.integers(1, 9), min_size=1, max_size=6), s=sizes, width=st.integers(1, 4),
       penalty=st.sampled_from([0.0, 0.6, 2.0]), eos=st.integers(0, VOCAB - 1), flat=st.booleans())  # fmt: skip
def test_outputs_do_not_depend_on_when_finished_sentences_leave(model, seed, limits, s, width, penalty, eos, flat):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, s + 1, (len(limits),), generator=random).tolist()
    source = padded(torch.randint(1, VOCAB, (length,), generator=random) for length in lengths)
    options = {"bos": BOS, "eos": eos, "penalty": penalty}
    never, *others = (
        outputs(Flat(model) if flat else decoder(model), fraction, source, torch.tensor(limits), width, **options)
        for fraction in (0.0, 0.5, 0.75, 1.0)
    )
    assert len(never) == 2 * len(limits)
    for found in others:
        for got, wanted in zip(found, never, strict=True):
            assert [h.tokens for h in got] == [h.tokens for h in wanted]
            assert [h.score for h in got] == pytest.approx([h.score for h in wanted], rel=1e-6, abs=1e-6)


def test_nan_scores_raise_an_error():
    model = tiny("pre", "sinusoid", True)
    nn.init.constant_(model.decoder[0].mlp.up.bias, torch.nan)
    source, limits = torch.randint(3, VOCAB, (2, 3)), torch.tensor([4, 6])
    with pytest.raises(ValueError, match="not numbers"):
        beam(decoder(model), source, limits, bos=BOS, eos=2, width=3)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_shrink_fraction_decides_when_finished_sentences_leave(fraction, monkeypatch):
    model, steps = decoder(tiny("pre", "sinusoid", True)), []
    real = model.step
    monkeypatch.setattr(search, "SHRINK", fraction)
    monkeypatch.setattr(model, "step", lambda token, state: (steps.append(len(token)), real(token, state))[1])
    greedy(model, torch.randint(3, VOCAB, (8, 3)), torch.arange(1, 9), bos=BOS, eos=-1)  # one ends at each step
    assert steps == {0.0: [8] * 8, 0.5: [8] * 4 + [4] * 2 + [2, 1], 1.0: [8, 7, 6, 5, 4, 3, 2, 1]}[fraction]
