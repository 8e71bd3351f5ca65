"""Recurrent networks with and without attention: the bottleneck, alignments, gates, and gradients over long distances.

The notes' RNNenc is our `Seq2Seq`, their RNNsearch our `Bahdanau`.

Shapes: B sentences, S source and T target length, D width of inputs and states, H width of a model's state.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.data.text.tokenizer import BOS, EOS, PAD
from regard.data.text.toys import toy_pairs
from regard.decode.search import greedy
from regard.layers.attention import Attention, attend
from regard.layers.recurrent import GRUCell, LSTMCell
from regard.layers.scores import Additive
from regard.layers.tap import record_calls, watch
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points, least_cpu_seconds
from regard.verify.plots import Curves, Heatmap
from regard.view.alignment import TOY_POSITIONS, attention_accuracy

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1
LETTERS = 4  # id of the letter a
VOCAB = LETTERS + 26

Model = Seq2Seq | Bahdanau


# Letters of the toys, as ids


def letters(text: str) -> list[int]:
    """The ids of "b a c"."""
    return [LETTERS + ord(letter) - ord("a") for letter in text.split()]


def learn(model: Model, toy: str, steps: int, lr: float, joined: int = 1, decay: float = 0.0) -> None:
    """Train a model on a toy, whose texts have 3 to 10 letters; up to so many of them are joined to a longer one."""
    pairs = list(toy_pairs(toy, "train", 10_000))
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=decay)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1, step / 50) * (1 - 0.9 * step / steps)
        count = int(torch.randint(1, joined + 1, ()))
        texts = [[pairs[(row + i) % len(pairs)] for i in range(count)] for row in torch.randint(len(pairs), (64,)).tolist()]
        sources, targets = ([letters(" ".join(pair[side] for pair in text)) for text in texts] for side in (0, 1))
        source = pad_sequence([torch.tensor([*ids, EOS]) for ids in sources], True, PAD)
        target = pad_sequence([torch.tensor([BOS, *ids, EOS]) for ids in targets], True, PAD)
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


@torch.no_grad()
def right_by_place(model: Model, length: int, texts: int = 200) -> Tensor:
    """The fraction of random texts in which greedy search copies the letter at each place: (length,)."""
    wanted = torch.randint(LETTERS, VOCAB, (texts, length))
    outputs = greedy(model, F.pad(wanted, (0, 1), value=EOS), torch.full((texts,), length + 1), bos=BOS, eos=EOS, scored=False)
    found = torch.tensor([(output.tokens + length * [PAD])[:length] for output in outputs])
    return (found == wanted).float().mean(0)


def letters_right(model: Model, lengths: Sequence[int]) -> Points:
    """The fraction of letters that greedy search copies to their place, of random texts of each length."""
    return [(length, right_by_place(model, length).mean().item()) for length in lengths]


def rnn_enc(hidden: int = 64, reverse: bool = True) -> Seq2Seq:
    """A small encoder and decoder without attention."""
    return Seq2Seq(Seq2SeqConfig(vocab=VOCAB, dim=32, hidden=hidden, depth=1, reverse=reverse))


def rnn_search(tied: bool = True) -> Bahdanau:
    """A small encoder and decoder with attention, of sizes that align well (tests/train/test_learns.py)."""
    return Bahdanau(BahdanauConfig(vocab=VOCAB, dim=16, readout=16, hidden=32, align=32, tied=tied))


# The bottleneck


@claim(12, "001", "A recurrent encoder hands a context vector of fixed length to the decoder, a bottleneck; with attention there "
       "is none.")  # fmt: skip
def the_decoder_sees_one_state_of_fixed_size() -> Iterator[Finding]:
    without, with_attention = Seq2Seq(Seq2SeqConfig(vocab=VOCAB, dim=8, hidden=4, depth=1)), small_bahdanau()
    lines: dict[str, Points] = {"without attention": [], "with attention": []}
    for length in (5, 10, 20, 40):
        source = torch.randint(LETTERS, VOCAB, (1, length))
        hidden, cell = without.start(source)
        lines["without attention"].append((length, hidden.numel() + cell.numel()))
        state = with_attention.start(source)
        lines["with attention"].append((length, state.hidden.numel() + state.memory.values.numel()))
    yield equals("numbers that the decoder gets from 5 and from 40 tokens, without attention",
                 [count for _, count in lines["without attention"][::3]], [8, 8])  # fmt: skip
    growth = lines["with attention"][-1][1] - lines["with attention"][0][1]
    yield equals("numbers more for each further token, with attention: two states of width 4", growth / 35, 8)
    yield equals("rank of the Jacobian of the decoder's logits by the source, without attention: at most the size of the state",
                 rank_of_source(without), 8)  # fmt: skip
    yield at_least("the same with attention", rank_of_source(with_attention), 12)
    yield Curves("What the decoder gets from the encoder", "source length, tokens", "numbers", lines)


def small_bahdanau() -> Bahdanau:
    """A model with states of width 4."""
    return Bahdanau(BahdanauConfig(vocab=VOCAB, dim=8, hidden=4, align=8, readout=8))


def rank_of_source(model: Model) -> int:
    """In how many independent directions a change of the source's embeddings changes the logits of 8 target tokens."""
    model = model.double()
    source, target = torch.randperm(VOCAB - LETTERS)[None, :12] + LETTERS, torch.randint(LETTERS, VOCAB, (1, 8))
    logits = model(source, target)[0, :, :3].flatten()  # (24,)
    rows = [torch.autograd.grad(logit, model.embed_source.weight, retain_graph=True)[0].flatten() for logit in logits]
    return int(torch.linalg.matrix_rank(torch.stack(rows), rtol=1e-10))


@claim(12, "001", "The fixed-length context vector is a bottleneck: a smaller one holds fewer words.", slow=True)
def a_narrow_state_holds_fewer_letters() -> Iterator[Finding]:
    lengths, lines = (3, 4, 6, 8, 10), dict[str, Points]()
    for hidden in (8, 32, 128):
        model = rnn_enc(hidden)
        learn(model, "copy", steps=300, lr=5e-3)
        lines[f"state of width {hidden}"] = letters_right(model, lengths)
    narrow, middle, wide = (dict(points) for points in lines.values())
    yield at_least("fraction of 8 letters that are copied right, width 128 / width 32", wide[8] / middle[8], 1.4)
    yield at_least("the same, width 32 / width 8", middle[8] / narrow[8], 1.5)
    yield at_least("fraction of 4 letters that are copied right, width 128", wide[4], 0.9)
    yield Curves("Copying without attention", "letters", "fraction copied right", lines)


@claim(13, "002", "An encoder-decoder starts to miss the initial words of long sentences, of about 30 words.",
       condition="without attention and before training, if the encoder reads the first word first; in reverse, the last words "
       "fade")  # fmt: skip
def the_state_forgets_what_it_read_first() -> Iterator[Finding]:
    lines: dict[str, Points] = {}
    for name, reverse in (("read in order", False), ("read in reverse", True)):
        model = rnn_enc(reverse=reverse)
        lines[name] = []
        for length in (2, 4, 8, 12, 16, 20, 26):
            source = LETTERS + torch.randperm(26)[None, :length]
            hidden, _ = model.encode(source)
            [gradient] = torch.autograd.grad((hidden * torch.randn_like(hidden)).sum(), model.embed_source.weight)
            first, last = gradient[source[0, 0]].norm().item(), gradient[source[0, -1]].norm().item()
            lines[name].append((length, first / (first + last)))
    yield at_most("influence of the first of 26 words on the state, of that and the last word's, read in order",
                  lines["read in order"][-1][1], 0.01)  # fmt: skip
    yield at_least("the same of 2 words", lines["read in order"][0][1], 0.1)
    yield at_least("the same of 26 words, read in reverse", lines["read in reverse"][-1][1], 0.99)
    yield Curves("What the encoder's last state depends on", "words", "gradient by the first word / by the first and the last",
                 lines)  # fmt: skip


@claim(13, "002", "An encoder-decoder starts to miss words of long sentences, of about 30 words.",
       condition="without attention; once it is trained to copy, it misses the last words most, not the initial ones, whichever "
       "word the encoder reads first", slow=True)  # fmt: skip
def sentences_of_30_words_lose_words() -> Iterator[Finding]:
    lines: dict[str, Points] = {}
    for order, reverse, steps in (("in reverse", True, 450), ("in order", False, 1000)):  # in order it takes longer to learn
        model = rnn_enc(reverse=reverse)
        learn(model, "copy", steps, lr=5e-3, joined=3)
        points, by_place = letters_right(model, (3, 5, 10, 20, 30)), right_by_place(model, 30)
        yield at_least(f"read {order}: fraction of 3 words that are copied right", points[0][1], 0.85)
        yield at_most(f"read {order}: fraction of 30 words that are copied right", points[-1][1], 0.25)
        yield at_least(f"read {order}: of 30 words, fraction of the first 10 that are right / of the last 10",
                       (by_place[:10].mean() / by_place[-10:].mean()).item(), 2)  # fmt: skip
        lines[f"read {order}, by length"] = points
        lines[f"read {order}, by place in 30 words"] = list(enumerate(by_place.tolist(), 1))
    yield Curves("Copying without attention, trained on 3 to 30 words", "words, or place in 30 words", "fraction copied right",
                 lines)  # fmt: skip


@claim(17, "001", "An RNN with attention (RNNsearch) stays good as sentences get longer, one without (RNNenc) does not.",
       condition="for the lengths of training", slow=True)  # fmt: skip
def attention_copies_long_texts() -> Iterator[Finding]:
    models: dict[str, Model] = {"RNNenc": rnn_enc(), "RNNsearch": rnn_search()}
    learn(models["RNNenc"], "copy", steps=400, lr=5e-3, joined=2)
    learn(models["RNNsearch"], "copy", steps=400, lr=0.01, joined=2, decay=0.2)
    lines = {name: letters_right(model, (3, 4, 8, 12, 16, 20, 24, 30)) for name, model in models.items()}
    without, with_attention = (dict(points) for points in lines.values())
    yield at_least("fraction of 3 letters that are copied right, RNNenc", without[3], 0.8)
    yield at_most("the same of 16 letters", without[16], 0.5)
    yield at_least("fraction of 3 letters that are copied right, RNNsearch", with_attention[3], 0.9)
    yield at_least("the same of 16 letters", with_attention[16], 0.85)
    yield at_most("the same of 30 letters, more than in training", with_attention[30], 0.6)
    yield Curves("Copying, trained on 3 to 20 letters", "letters", "fraction copied right", lines)


@claim(
    17, "001", "With attention there is no more bottleneck through a single vector: the context looks at all parts of the input."
)
def attention_reaches_every_word_of_a_long_sentence() -> Iterator[Finding]:
    lines: dict[str, Points] = {"RNNenc": [], "RNNsearch": []}
    for length in (4, 8, 16, 26):
        source = LETTERS + torch.randperm(26)[None, :length]
        for name, model in (("RNNenc", rnn_enc()), ("RNNsearch", rnn_search(tied=False))):
            logits = model(source, torch.tensor([[BOS]]))[0, 0]
            [gradient] = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), model.embed_source.weight)
            by_word = gradient[source[0]].norm(dim=-1)
            lines[name].append((length, (by_word.min() / by_word.max()).item()))
    yield at_most(
        "influence of the weakest of 26 words on the first output / of the strongest: RNNenc", lines["RNNenc"][-1][1], 1e-3
    )
    yield at_least("the same: RNNsearch", lines["RNNsearch"][-1][1], 0.02)
    yield Curves("The weakest word", "words", "gradient by the weakest word / by the strongest", lines, log_y=True)


# Attention of a recurrent decoder


@claim(
    14,
    "001",
    "s_t = g(y_{t-1}, s_{t-1}, c_t), with a context c_t of its own for each step, a weighted sum of the source's states.",
)
def a_decoder_step_equals_its_formula() -> Iterator[Finding]:
    model = small_bahdanau().requires_grad_(False)
    decoder, score = model.decoder, model.decoder.cross.score
    assert isinstance(score, Additive)
    nn.init.normal_(score.value.weight, std=3.0)  # sharp weights: before training they are nearly all alike
    cell = nn.GRUCell(8 + 8, 4).requires_grad_(False)  # of torch: reads the last token and the context
    cell.weight_ih.copy_(torch.cat((decoder.cell.inputs.weight, decoder.context.weight), 1))
    cell.bias_ih.copy_(decoder.cell.inputs.bias)
    cell.weight_hh.copy_(decoder.cell.recurrent.weight)
    cell.bias_hh.copy_(decoder.cell.recurrent.bias)
    source = torch.randint(LETTERS, VOCAB, (1, 6))
    annotations, state = model.encode(source)[0][0], model.start(source)
    w, u, v = (layer.weight for layer in (score.query, score.key, score.value))
    for step, token in enumerate(torch.randint(LETTERS, VOCAB, (3, 1)), 1):
        before = state.hidden[0]
        energies = torch.stack([v[0] @ torch.tanh(w @ before + u @ h) for h in annotations])
        context = sum((a * h for a, h in zip(energies.softmax(0), annotations, strict=True)), torch.zeros(8))
        y = model.embed_target.weight[token] * 8**0.5
        _, state = model.step(token, state)
        yield close(f"state s_{step} against torch's GRU cell of y_{step - 1}, s_{step - 1} and Σ α_i h_i", state.hidden,
                    cell(torch.cat((y, context[None]), 1), before[None]), within=EXACT)  # fmt: skip
    with torch.no_grad(), record_calls(model, "decoder.cross") as calls:
        model(source, torch.randint(LETTERS, VOCAB, (1, 3)))
    changes = [((b.mixed - a.mixed).norm() / a.mixed.norm()).item() for a, b in pairwise(calls)]
    yield at_least("least change of the context from a step to the next, as a fraction of its length", min(changes), 1e-4)


@claim(14, "001", "All steps are differentiable, so the error is backpropagated through everything.")
def errors_reach_every_weight_through_attention() -> Iterator[Finding]:
    model = small_bahdanau().double()
    source, target = torch.randint(LETTERS, VOCAB, (2, 1, 6))

    def loss() -> Tensor:
        return F.cross_entropy(model(source, target)[0, :-1], target[0, 1:])

    weights = dict(model.named_parameters())
    gradients = dict(zip(weights, torch.autograd.grad(loss(), list(weights.values()), materialize_grads=True), strict=True))
    yield equals("weights without a gradient", [name for name, gradient in gradients.items() if not gradient.abs().sum()], [])
    for name in ("embed_source.weight", "encoder.weight_hh_l0", "decoder.cross.score.query.weight"):
        direction, step = torch.randn_like(weights[name]), 1e-5
        with torch.no_grad():
            weights[name].add_(step * direction)
            after = loss()
            weights[name].sub_(2 * step * direction)
            before = loss()
            weights[name].add_(step * direction)
        numeric = ((after - before) / (2 * step)).item()
        yield close(f"{name}: derivative of the loss in a random direction, against a difference quotient",
                    (gradients[name] * direction).sum().item(), numeric, rel=1e-4, within=1e-8)  # fmt: skip


@claim(15, "001", "The encoder's state of a word is h_t = [→h_t; ←h_t], from an RNN in each direction.")
def encoder_states_join_both_directions() -> Iterator[Finding]:
    model = small_bahdanau().requires_grad_(False)
    rows = [torch.randint(LETTERS, VOCAB, (length,)) for length in (7, 4)]
    states, mask = model.encode(pad_sequence(rows, True, PAD))
    cells = {suffix: nn.GRUCell(8, 4) for suffix in ("", "_reverse")}
    for suffix, cell in cells.items():
        for name, weight in cell.named_parameters():
            weight.data.copy_(getattr(model.encoder, f"{name}_l0{suffix}"))
    for row, found in zip(rows, states, strict=True):
        x = model.embed_source.weight[row] * 8**0.5
        forward, backward = run_cell(cells[""], x), run_cell(cells["_reverse"], x.flip(0)).flip(0)
        yield close(f"states of {len(row)} words, against loops over torch's GRU cell from both ends", found[: len(row)],
                    torch.cat((forward, backward), 1), within=EXACT)  # fmt: skip
    yield equals("words that are no padding, by the mask", mask.sum().item(), 11)


def run_cell(cell: nn.GRUCell, x: Tensor) -> Tensor:
    """The states of torch's cell over x (T, D), from a state of zeros: (T, H)."""
    states = [x.new_zeros(cell.hidden_size)]
    for row in x:
        states.append(cell(row[None], states[-1][None])[0])
    return torch.stack(states[1:])


@claim(15, "001", "The decoder has three stages: attend to the source, update the state, predict the next token.")
def a_decoder_step_is_attend_update_predict() -> Iterator[Finding]:
    model = small_bahdanau().requires_grad_(False)
    source, target = torch.randint(LETTERS, VOCAB, (2, 1, 5))
    state, stages = model.start(source), model.decoder
    hidden, memory, mask = state
    at_once = model(source, target)[0]
    for step, token in enumerate(target[0, :, None]):
        x = model.embed_target.weight[token] * 8**0.5
        context = stages.attend(hidden, memory, mask)
        hidden = stages.update(stages.cell.inputs(x), context, hidden)
        by_hand = model.output(stages.predict(hidden, context, x))
        logits, state = model.step(token, state)
        yield close(f"step {step + 1}: logits of the three stages against `step`", by_hand, logits, within=EXACT)
        yield close(f"step {step + 1}: the same against teacher forcing", by_hand[0], at_once[step], within=EXACT)
    inputs = stages.cell.inputs(x)
    changed = {
        "attend, with another state": stages.attend(hidden + 1, memory, mask) - stages.attend(hidden, memory, mask),
        "update, with another context": stages.update(inputs, context + 1, hidden) - stages.update(inputs, context, hidden),
        "predict, with another state": stages.predict(hidden + 1, context, x) - stages.predict(hidden, context, x),
    }
    for name, change in changed.items():
        yield at_least(f"change of the output: {name}", change.abs().max().item(), 1e-6)


@claim(16, "001", "Each pixel of the map is the weight α_{t,i} of the i-th source word for the t-th target word.")
def the_map_has_the_weight_of_each_source_word() -> Iterator[Finding]:
    model = small_bahdanau().eval()
    source = pad_sequence([torch.randint(LETTERS, VOCAB, (length,)) for length in (6, 4)], True, PAD)
    with torch.no_grad(), record_calls(model, "decoder.cross") as calls:
        model(source, torch.randint(LETTERS, VOCAB, (2, 5)))
    weights = torch.cat([call.weights[:, 0] for call in calls], 1)  # (B, T, S)
    annotations, _ = model.encode(source)
    yield equals("shape for 5 target and 6 source words", list(weights[0].shape), [5, 6])
    yield close("sum of each row", weights.sum(-1), torch.ones(2, 5), within=EXACT)
    yield close("weight of the padding of a source of 4 words", weights[1, :, 4:].sum(), 0.0)
    loop = torch.stack([sum((a * h for a, h in zip(row, annotations[0], strict=True)), torch.zeros(8)) for row in weights[0]])
    yield close("contexts against Σ_i α_{t,i} h_i", torch.cat([call.mixed[0, 0] for call in calls]), loop, within=EXACT)


@claim(16, "001", "The weights show which source word a target word is translated from.", slow=True)
def trained_attention_finds_the_letter_that_is_written() -> Iterator[Finding]:
    for toy, steps in (("reverse", 300), ("copy", 500)):
        model = rnn_search()
        learn(model, toy, steps, lr=0.01, decay=0.2)
        right = list[float]()
        for source, target in toy_pairs(toy, "test", 100):
            with torch.no_grad(), watch(model) as weights:
                model(torch.tensor([[*letters(source), EOS]]), torch.tensor([[BOS, *letters(target)]]))
            drawn = torch.cat([step[0, 0] for step in weights["decoder.cross"]])  # (T + 1, S + 1)
            right.append(attention_accuracy(drawn[:-1], TOY_POSITIONS[toy](len(letters(source)))))
        yield at_least(f"{toy}: fraction of letters that attend most to their own letter", statistics.mean(right), 0.9)
        yield Heatmap(f"{toy}: {target} from {source}", "source letter", "target letter", drawn, [*target.split(), "end"],
                      [*source.split(), "end"], "weight")  # fmt: skip


# From a GRU to attention, in five steps


@torch.no_grad()
def unroll(cell: GRUCell, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The states of our cell over x (T, D), and by the formula the gates u_t and candidates h̃_t = f(x_t, h_{t-1})."""
    width, h = h0.shape[-1], h0[None]
    states, gates, candidates = list[Tensor](), list[Tensor](), list[Tensor]()
    for inputs in cell.inputs(x)[:, None]:
        recurrent = cell.recurrent(h)
        reset, update = torch.sigmoid(inputs + recurrent)[:, : 2 * width].chunk(2, -1)
        candidates.append(torch.tanh(inputs[:, 2 * width :] + reset * recurrent[:, 2 * width :]))
        gates.append(update)
        h = cell(inputs, h)
        states.append(h)
    return torch.cat(states), torch.cat(gates), torch.cat(candidates)


def gate_weights(u: Tensor) -> Tensor:
    """(Π_{j=i+1…t} u_j) (1 − u_i), how much candidate i counts in state t: gates (T, D) → (T, T, D)."""
    weights = u.new_zeros(len(u), *u.shape)
    for t in range(len(u)):
        for i in range(t + 1):
            weights[t, i] = u[i + 1 : t + 1].prod(0) * (1 - u[i])
    return weights


def printed_weights(u: Tensor) -> Tensor:
    """The same by the notes: (Π_{j=i…t−i+1} u_j) (Π_{k=1…i−1} (1 − u_k))."""
    weights = u.new_zeros(len(u), *u.shape)
    for t in range(1, len(u) + 1):  # the formula counts from 1, slices from 0
        for i in range(1, t + 1):
            weights[t - 1, i - 1] = u[i - 1 : t - i + 1].prod(0) * (1 - u[: i - 1]).prod(0)
    return weights


@claim("c1", "001", "Unrolled, h_t = Σ_i (Π_{j=i}^{t−i+1} u_j) (Π_{k=1}^{i−1} (1 − u_k)) h̃_i.",
       right="h_t = Σ_i (Π_{j=i+1}^{t} u_j) (1 − u_i) h̃_i + (Π_{j=1}^{t} u_j) h_0")  # fmt: skip
def a_gru_unrolls_with_the_later_gates() -> Iterator[Finding]:
    cell, x, h0 = GRUCell(8, 8), torch.randn(12, 8), torch.randn(8)
    states, u, candidates = unroll(cell, x, torch.zeros(8))
    yield refutes(
        "states of our GRU from h_0 = 0, against the notes' sum", states, (printed_weights(u) * candidates).sum(1), by=0.05
    )
    yield close("the same against Σ_i (Π_{j>i} u_j) (1 − u_i) h̃_i", states, (gate_weights(u) * candidates).sum(1), within=EXACT)
    states, u, candidates = unroll(cell, x, h0)
    unrolled = (gate_weights(u) * candidates).sum(1) + u.cumprod(0) * h0
    yield close("from another h_0, with (Π_j u_j) h_0", states, unrolled, within=EXACT)
    sums = printed_weights(u).sum(1)
    yield refutes("sum of the notes' weights, against 1 − Π u", sums, 1 - u.cumprod(0), by=0.05)


@claim(24, "001", "A GRU adds to its state, h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ h̃_t, which creates linear shortcuts; unrolled, it "
       "is a weighted combination of all candidates.")  # fmt: skip
def a_gru_is_a_weighted_sum_of_its_candidates() -> Iterator[Finding]:
    cell, reference = GRUCell(8, 8), nn.GRUCell(8, 8)
    with torch.no_grad():
        for ours, theirs in ((cell.inputs, "ih"), (cell.recurrent, "hh")):
            getattr(reference, f"weight_{theirs}").copy_(ours.weight)
            getattr(reference, f"bias_{theirs}").copy_(ours.bias)
    x, h0 = torch.randn(12, 8), torch.randn(8)
    states, u, candidates = unroll(cell, x, h0)
    with torch.no_grad():
        expected = [h0[None]]
        for row in x:
            expected.append(reference(row[None], expected[-1]))
    yield close("states of our GRU against torch's", states, torch.cat(expected[1:]), within=EXACT)
    before = torch.cat((h0[None], states[:-1]))
    yield close("states against u_t ⊙ h_{t−1} + (1 − u_t) ⊙ h̃_t", states, u * before + (1 - u) * candidates, within=EXACT)
    weights = gate_weights(u)
    yield close("states against the weighted sum of the candidates and h_0", states,
                (weights * candidates).sum(1) + u.cumprod(0) * h0, within=EXACT)  # fmt: skip
    nn.init.constant_(cell.inputs.bias[8:16], 20.0)  # the gates u are open: only the shortcut is left
    start = h0[None].clone().requires_grad_()
    h = start
    for inputs in cell.inputs(torch.randn(100, 8))[:, None]:
        h = cell(inputs, h)
    [gradient] = torch.autograd.grad(h.sum(), start)
    yield close("with u ≈ 1: gradient of a state by the one 100 steps before", gradient, torch.ones(1, 8), within=1e-3)
    yield Heatmap("A GRU's weights of its candidates, first feature", "candidate", "state", weights[..., 0], z="weight")


@claim(
    24, "001", "The dependent weights can be freed, h_t = Σ_i α_i h̃_i with α_i ∝ exp(ATT(h̃_i, x_t)), then the candidates, f(x_i)."
)
def freed_weights_and_candidates_are_attention() -> Iterator[Finding]:
    cell, x, h0 = GRUCell(8, 8), torch.randn(12, 8), torch.randn(8)
    states, u, candidates = unroll(cell, x, h0)
    # Step 1 with ATT the logarithm of the gates' weights is the GRU; a gate is of one feature, so each is a head of width 1.
    logs = torch.cat((u.cumprod(0)[:, None], gate_weights(u)), 1).permute(2, 0, 1).log()  # (D, T, 1 + T)
    values = torch.cat((h0[None], candidates)).T[..., None]  # (D, 1 + T, 1)
    mixed, _ = attend(torch.zeros(8, 12, 1), values, values, score=lambda q, k: logs)
    yield close("step 1, if ATT is the logarithm of the gates' weights, against the GRU", mixed[..., 0].T, states, within=EXACT)
    mixed, _ = attend(x, candidates, candidates, causal=True)
    yield close("step 1, if ATT is the scaled dot product, against a loop", mixed, loop(x, candidates, candidates), within=EXACT)
    with torch.no_grad():
        features = cell(cell.inputs(x), torch.zeros(12, 8))  # f: all positions at once, from no state
        one_by_one = torch.cat([cell(cell.inputs(row[None]), torch.zeros(1, 8)) for row in x])
    yield close(
        "step 2: candidates f(x_i) of all positions at once, against one after the other", features, one_by_one, within=EXACT
    )
    mixed, _ = attend(x, features, features, causal=True)
    yield close("step 2: Σ_i α_i f(x_i) against a loop", mixed, loop(x, features, features), within=EXACT)


def loop(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Σ_i α_i v_i over the positions so far, α_i ∝ exp(k_i · q_t / √D), one query at a time: (T, D) each."""
    rows = [
        ((keys[: t + 1] @ q / q.shape[-1] ** 0.5).softmax(0)[:, None] * values[: t + 1]).sum(0) for t, q in enumerate(queries)
    ]
    return torch.stack(rows)


@claim(24, "001", "Then keys and values can be separated, K(f(x_i)) and V(f(x_i)), with queries Q(x_t), and several heads "
       "joined: Transformers.")  # fmt: skip
def separate_keys_values_and_heads_are_the_transformers_attention() -> Iterator[Finding]:
    x = torch.randn(12, 8)
    for step, heads in ((3, 1), (4, 4)):
        layer = Attention(8, heads, bias=False).requires_grad_(False)
        layer.out.weight.copy_(torch.eye(8))
        q, k, v = (x @ matrix.T for matrix in layer.qkv.weight.chunk(3))
        width = 8 // heads
        expected = torch.cat([loop(*parts) for parts in zip(*(part.split(width, 1) for part in (q, k, v)), strict=True)], 1)
        name = "our causal attention with one head" if heads == 1 else f"the same with {heads} heads"
        yield close(
            f"step {step}: {name}, f the identity, against a loop", layer(x[None], causal=True)[0], expected, within=EXACT
        )
    yield at_least("what the heads change", (expected - loop(q, k, v)).abs().max().item(), 0.01)


# What is wrong with recurrence


def run_gru(cell: GRUCell, x: Tensor) -> Tensor:
    """The states of our GRU over x (B, T, D)."""
    hidden, states = x.new_zeros(len(x), cell.recurrent.weight.shape[1]), list[Tensor]()
    for inputs in cell.inputs(x).unbind(1):
        hidden = cell(inputs, hidden)
        states.append(hidden)
    return torch.stack(states, 1)


def run_lstm(cell: LSTMCell, x: Tensor) -> Tensor:
    """The states of our LSTM over x (B, T, D)."""
    hidden = c = x.new_zeros(len(x), cell.recurrent.weight.shape[1])
    states = list[Tensor]()
    for inputs in cell.inputs(x).unbind(1):
        hidden, c = cell(inputs, hidden, c)
        states.append(hidden)
    return torch.stack(states, 1)


def simple_rnn(dim: int, scale: float) -> Callable[[Tensor], Tensor]:
    """Torch's tanh RNN with a recurrent matrix that is orthogonal up to a scale: (B, T, D) → (B, T, D)."""
    rnn = nn.RNN(dim, dim, batch_first=True)
    nn.init.orthogonal_(rnn.get_parameter("weight_hh_l0"), gain=scale)
    return partial(run_rnn, rnn)


def run_rnn(rnn: nn.RNN, x: Tensor) -> Tensor:
    """The states of torch's RNN over x (B, T, D)."""
    states: Tensor = rnn(x)[0]
    return states


@claim(86, "003 004", "RNNs have vanishing or exploding gradients, which makes long-range dependencies difficult to capture.")
def gradients_vanish_or_explode_over_time() -> Iterator[Finding]:
    dim, steps = 32, 64
    x = torch.randn(1, steps, dim)
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "RNN, weights × 0.7": simple_rnn(dim, 0.7), "RNN, weights × 4": simple_rnn(dim, 4.0),
        "GRU": partial(run_gru, GRUCell(dim, dim)), "LSTM": partial(run_lstm, LSTMCell(dim, dim)),
        "self-attention": Attention(dim, heads=4),
    }  # fmt: skip
    lines = dict[str, Points]()
    for name, layer in layers.items():
        inputs = x.clone().requires_grad_()
        last = layer(inputs)[0, -1]
        [gradient] = torch.autograd.grad((last * torch.randn_like(last)).sum(), inputs)
        norms = gradient[0].norm(dim=-1).flip(0).tolist()  # by the distance from the last step
        lines[name] = [(distance, norm / norms[1]) for distance, norm in enumerate(norms) if distance]
    vanishing, exploding, gru, lstm, attention = (points[-1][1] for points in lines.values())
    yield at_most("gradient by the input 63 steps before / by the last before: RNN with small weights", vanishing, 1e-9)
    yield at_least("the same: RNN with large weights", exploding, 100)
    yield between("the same: GRU", gru, 1e-13, 1e-3)
    yield between("the same: LSTM, whose forget gate starts open", lstm, 1e-7, 0.1)
    yield at_least("the same: LSTM / RNN with small weights", lstm / vanishing, 1e5)
    yield between("the same: self-attention", attention, 0.02, 50)
    yield Curves("Gradient of the last output by each input", "distance, steps", "gradient norm / that at distance 1", lines,
                 log_y=True)  # fmt: skip


@claim(86, "003 004", "RNNs compute slowly for long sequences, since they process the data sequentially.")
def recurrence_takes_one_call_after_the_other() -> Iterator[Finding]:
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "LSTM": partial(run_lstm, LSTMCell(32, 32)),
        "self-attention": Attention(32, 4),
    }
    sizes = (32, 128, 256)
    taken = least_cpu_seconds({f"{name} {steps}": partial(layer, torch.randn(1, steps, 32))
                               for name, layer in layers.items() for steps in sizes})  # fmt: skip
    lines: dict[str, Points] = {name: [(steps, taken[f"{name} {steps}"]) for steps in sizes] for name in layers}
    ratios = [recurrent / parallel for (_, recurrent), (_, parallel) in zip(*lines.values(), strict=True)]
    yield at_least("CPU seconds of our LSTM cell over 256 steps / of self-attention", ratios[-1], 3)
    yield between("CPU seconds of the LSTM, 256 steps / 32 steps", lines["LSTM"][-1][1] / lines["LSTM"][0][1], 5, 11)
    yield Curves("A layer of width 32", "steps", "CPU seconds", lines, True, True)


@claim(86, "003", "RNNs have difficulty in accessing information from a long time ago.",
       condition="after 150 training steps, in which self-attention learns it", slow=True)  # fmt: skip
def recurrent_layers_do_not_learn_to_recall_a_distant_word() -> Iterator[Finding]:
    lines: dict[str, Points] = {"RNN": [], "GRU": [], "LSTM": [], "self-attention": []}
    for distance in (2, 20, 50):
        rnn, gru, lstm, attention = nn.RNN(32, 32, batch_first=True), GRUCell(32, 32), LSTMCell(32, 32), Attention(32, heads=4)
        layers: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
            "RNN": (rnn, partial(run_rnn, rnn)), "GRU": (gru, partial(run_gru, gru)),
            "LSTM": (lstm, partial(run_lstm, lstm)), "self-attention": (attention, attention),
        }  # fmt: skip
        for name, (module, layer) in layers.items():
            lines[name].append((distance, recalled(module, layer, distance)))
    for name, points in lines.items():
        yield at_least(f"fraction of first words that are recalled 2 steps later, {name}", points[0][1], 0.9)
        found = points[-1][1]
        what = f"the same 50 steps later, {name} (chance: 0.125)"
        yield at_least(what, found, 0.7) if name == "self-attention" else at_most(what, found, 0.5)
    yield Curves("Recalling the first of many words", "steps since", "fraction recalled", lines)


def recalled(module: nn.Module, layer: Callable[[Tensor], Tensor], distance: int, kinds: int = 8) -> float:
    """How many first words, of 8, the last of `distance` random other words recalls after training."""
    embed, output = nn.Embedding(2 * kinds, 32), nn.Linear(32, kinds)
    parameters = [*nn.ModuleList([embed, output, module]).parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)

    def answer(count: int) -> tuple[Tensor, Tensor]:
        first = torch.randint(kinds, (count, 1))
        others = torch.randint(kinds, 2 * kinds, (count, distance))
        return output(layer(embed(torch.cat((first, others), 1)))[:, -1]), first[:, 0]

    for _ in range(150):
        loss = F.cross_entropy(*answer(32))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    with torch.no_grad():
        logits, first = answer(400)
    return (logits.argmax(-1) == first).float().mean().item()
