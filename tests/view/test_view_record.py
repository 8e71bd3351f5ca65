"""Records of text models: the weights of `watch` in their places, the probabilities of the answer, and running again."""

import itertools
import math

import pytest
import torch
from test_speech_maps import untrained
from tiny_captioners import captioner, random_image
from tiny_predictors import generator, make_run, masked_lm, text_classifier, text_embedder, translator
from tone_speech import say

from regard.data.text.batches import pad
from regard.data.text.tokenizer import Tokenizer
from regard.layers.tap import tap_of, watch
from regard.models.elmo import ELMo, ELMoConfig
from regard.tasks.bidirectional_lm import BidirectionalLM
from regard.view.record import AttentionLayer, Windows, record_attention, rollout_of, thumbnails
from regard.view.words import text_axis

TEXT = "the cat runs in the park"
ATTENDING = ["transformer", "t5", "bahdanau"]


def watched(model, *inputs) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
    with watch(model) as recorded, torch.inference_mode():
        output = model(*inputs)
    return output, recorded


def assert_rows_sum_to_one(record) -> None:
    for layer in record.layers:
        for head in (None, *range(layer.heads)):
            torch.testing.assert_close(layer.dense(head).sum(-1), torch.ones(layer.shape[0]))
        assert layer.shape == (record.axes[layer.queries].size, record.axes[layer.keys].size)
    if len(record.alignment):
        rows, columns = (record.axes[name].size for name in record.alignment_axes)
        assert record.alignment.shape == (rows, columns)
        torch.testing.assert_close(record.alignment.sum(-1), torch.ones(rows))


# -- translators


@pytest.mark.parametrize("family", ATTENDING)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_translators_weights_are_those_of_each_step_by_itself(family, beam):
    predictor = translator(family, beam=beam)
    record = record_attention(predictor, TEXT)
    [source], [answer] = predictor.encode([TEXT]), predictor.translate([predictor.encode([TEXT])[0]])
    target = [*answer.ids, predictor.tokenizer.special.eos][: record.axes["answer"].size]
    assert len(target) > 3
    assert record.answer.text == answer.text
    for step in range(len(target)):  # each prefix by itself: its last row is the step
        read = torch.tensor([[predictor.tokenizer.special.bos, *target[:step]]])
        logits, recorded = watched(predictor.model, pad([source], predictor.tokenizer.special), read)
        for layer in record.layers:
            seen = torch.cat(recorded[layer.name], -2)[0]  # (H, Q, K)
            for head in range(layer.heads):
                for key in range(seen.shape[-1] if layer.kind != "self" else 0):
                    got = float(layer.weights[head, step, key])
                    assert got == pytest.approx(float(seen[head, -1, key]), abs=1e-5)
                if layer.kind == "self":
                    torch.testing.assert_close(layer.weights[head], seen[head], atol=1e-5, rtol=0)
        probability = float(logits[0, -1].softmax(-1)[target[step]])
        assert record.answer.items[step].probability == pytest.approx(probability, rel=1e-3)
    assert_rows_sum_to_one(record)


@pytest.mark.parametrize("family", ATTENDING)
def test_the_alignment_is_the_mean_of_all_cross_attention(family):
    record = record_attention(translator(family), TEXT)
    cross = [layer for layer in record.layers if layer.kind == "cross"]
    rows, columns = record.alignment.shape
    for row in range(rows):
        for column in range(columns):
            heads = [float(layer.weights[head, row, column]) for layer in cross for head in range(layer.heads)]
            assert float(record.alignment[row, column]) == pytest.approx(sum(heads) / len(heads), abs=1e-6)
    assert record.alignment_axes == ("answer", "source")
    assert record.alignment_title == {"bahdanau": "cross-attention"}.get(family, "cross-attention, mean of 2 layers and 3 heads")


def test_axes_of_a_translator_are_source_what_is_read_and_what_is_answered():
    predictor = translator("transformer")
    record = record_attention(predictor, TEXT, tokens=4)
    special, source = predictor.tokenizer.special, record.axes["source"]
    assert [word.text for word in source.words] == [*TEXT.split(), "</s>"]
    assert source.special == [source.size - 1]
    assert record.axes["read"].labels[0] == "<s>"
    assert record.axes["read"].labels[1:] == record.axes["answer"].labels[:-1]
    assert record.axes["answer"].size == len(record.answer.items) <= 4
    assert [item.query for item in record.answer.items] == list(range(len(record.answer.items)))
    assert record.rerun.source == predictor.encode([TEXT])[0]
    assert special.eos not in record.rerun.source
    titles = [layer.title for layer in record.layers]
    assert titles[0] == "encoder layer 1, self-attention"
    assert titles[-2:] == ["decoder layer 2, masked self-attention", "decoder layer 2, cross-attention"]
    assert record.title == "tiny (transformer)"
    assert record_attention(predictor, TEXT, name="mine", tokens=2).title == "mine (transformer)"


def test_an_answer_that_ends_has_its_end_token_and_one_that_is_cut_has_not():
    predictor = translator("transformer")
    eos = predictor.tokenizer.special.eos
    with torch.no_grad():
        predictor.model.output.weight[eos] = 0
    cut = record_attention(predictor, TEXT, tokens=3)
    assert cut.axes["answer"].size == 3
    assert "</s>" not in cut.axes["answer"].labels
    ended = translator("transformer")
    with torch.no_grad():
        ended.model.decoder_norm.weight.zero_()
        ended.model.decoder_norm.bias.fill_(1)
        ended.model.output.weight[eos] = 5  # every step predicts the end
    record = record_attention(ended, TEXT)
    assert (record.axes["read"].labels, record.axes["answer"].labels, record.answer.text) == (["<s>"], ["</s>"], "")
    assert_rows_sum_to_one(record)


def test_answers_have_the_words_of_their_own_vocabulary():
    predictor = translator("transformer", two_vocabularies=True)
    assert predictor.target_tokenizer.vocab < predictor.tokenizer.vocab
    record = record_attention(predictor, TEXT, tokens=5)
    [answer] = predictor.translate([record.rerun.source], tokens=5)
    assert record.axes["answer"].labels[: len(answer.tokens)] == [token.replace("▁", "") or "␣" for token in answer.tokens]
    assert [word.text for word in record.axes["source"].words] == [*TEXT.split(), "</s>"]
    assert_rows_sum_to_one(record)


def test_a_model_without_attention_has_an_answer_and_a_note():
    predictor = translator("seq2seq")
    record = record_attention(predictor, TEXT, tokens=4)
    assert (record.layers, record.alignment.shape) == ([], (0, 0))
    assert record.answer.text == predictor.translate([record.rerun.source], tokens=4)[0].text
    assert "no attention" in record.notes[0]
    with pytest.raises(ValueError, match="no self-attention"):
        rollout_of(record, "encoder")


@pytest.mark.parametrize("family", [*ATTENDING, "seq2seq"])
def test_running_a_translator_again_gives_the_same_or_that_of_another_source(family):
    predictor = translator(family)
    record = record_attention(predictor, TEXT, tokens=6)
    probabilities = torch.tensor([item.probability for item in record.answer.items])
    torch.testing.assert_close(record.rerun.logprobs().exp(), probabilities, rtol=1e-4, atol=1e-6)
    again = record.rerun.answer()
    assert (again.text, len(again.items)) == (record.answer.text, len(record.answer.items))
    other = record.rerun.source[2:]
    assert record.rerun.answer(other).text == predictor.translate([other], tokens=6)[0].text
    changed = record.rerun.logprobs(other)
    assert not torch.allclose(changed, record.rerun.logprobs())
    target = [*predictor.translate([record.rerun.source], tokens=6)[0].ids, predictor.tokenizer.special.eos][: len(changed)]
    read = torch.tensor([[predictor.tokenizer.special.bos, *target[:-1]]])
    with torch.inference_mode():
        logits = predictor.model(pad([other], predictor.tokenizer.special), read)[0]
    for step, token in enumerate(target):
        assert float(changed[step]) == pytest.approx(float(logits[step].log_softmax(-1)[token]), abs=1e-4)


def test_a_sample_depends_on_its_seed_and_a_beam_and_a_temperature_exclude_each_other():
    predictor = translator("transformer")
    texts = {record_attention(predictor, TEXT, temperature=3.0, seed=seed, tokens=8).answer.text for seed in range(4)}
    assert len(texts) > 1
    same = [record_attention(predictor, TEXT, temperature=3.0, seed=5, tokens=8) for _ in range(2)]
    assert same[0].answer == same[1].answer
    assert same[0].rerun.answer().text == same[0].answer.text
    with pytest.raises(ValueError, match="beam 2 and temperature"):
        record_attention(predictor, TEXT, temperature=1.0, beam=2)


def test_several_sentences_are_one_here_and_a_note_says_so():
    record = record_attention(translator("transformer"), "The dog runs. The cat sits.", tokens=3)
    assert any("several sentences" in note for note in record.notes)
    assert not record_attention(translator("transformer"), "The dog runs.", tokens=3).notes


@pytest.mark.parametrize("make", [translator, generator, masked_lm, text_classifier, text_embedder])
def test_what_is_no_text_or_an_empty_one_is_refused(make):
    predictor = make("transformer") if make is translator else make()
    for what in ("", "   "):
        if make is generator and what:
            continue  # spaces are text to it
        with pytest.raises(ValueError, match="an empty sentence has no attention"):
            record_attention(predictor, what)
    with pytest.raises(ValueError, match="tiny reads text, and got bytes"):
        record_attention(predictor, b"abc")
    with pytest.raises(ValueError, match="tokens"):
        record_attention(predictor, "cat " * 2000)


# -- language models


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_a_language_models_rows_are_those_of_the_tokens_before_the_answer(kind):
    predictor = generator(kind)
    record = record_attention(predictor, "the cat", tokens=6)
    prompt, _ = predictor.encode_prompt("the cat")
    answer = predictor.generate("the cat", tokens=6, temperature=0)
    assert record.answer.text == answer
    tokens = list(record.rerun.source)
    assert tokens == prompt
    for row, item in enumerate(record.answer.items):  # greedy, one forward pass a token
        logits, recorded = watched(predictor.model, torch.tensor([tokens]))
        best = int(logits[0, -1].argmax())
        heads = [recorded[layer.name][0][0, head, -1] for layer in record.layers for head in range(layer.heads)]
        mean = sum(heads) / len(heads)
        torch.testing.assert_close(record.alignment[row, : len(tokens)], mean, atol=1e-5, rtol=0)
        assert float(record.alignment[row, len(tokens) :].abs().sum()) == 0
        assert item.probability == pytest.approx(float(logits[0, -1].softmax(-1)[best]), rel=1e-3)
        tokens.append(best)
    _, recorded = watched(predictor.model, torch.tensor([tokens]))
    for layer in record.layers:
        assert (layer.kind, layer.queries, layer.keys, layer.stack) == ("masked", "tokens", "tokens", "")
        torch.testing.assert_close(layer.weights, recorded[layer.name][0][0], atol=1e-5, rtol=0)
    assert record.axes["tokens"].size == len(tokens)
    assert record.axes["tokens"].labels[len(prompt) :] == record.axes["answer"].labels
    assert_rows_sum_to_one(record)


def test_a_continuation_that_fills_the_context_does_not_read_its_last_token():
    predictor = generator("characters")
    room = predictor.context - 7 + 1
    record = record_attention(predictor, "the cat", tokens=room)
    assert len(record.answer.items) == room
    assert record.axes["tokens"].size == predictor.context == 7 + room - 1
    assert_rows_sum_to_one(record)
    assert len(record.rerun.logprobs()) == room
    assert len(record_attention(predictor, "the cat").answer.items) == 20


def test_running_a_language_model_again_continues_another_prompt():
    predictor = generator("characters")
    record = record_attention(predictor, "the cat", tokens=4)
    probabilities = torch.tensor([item.probability for item in record.answer.items])
    torch.testing.assert_close(record.rerun.logprobs().exp(), probabilities, rtol=1e-4, atol=1e-6)
    [other] = predictor.tokenizer.encode(["the"])
    assert record.rerun.answer(other).text == predictor.generate("the", tokens=4, temperature=0)
    assert record.rerun.logprobs(other).shape == (4,)
    sampled = [record_attention(predictor, "the cat", tokens=9, temperature=5.0, seed=seed).answer.text for seed in range(3)]
    assert len({*sampled}) > 1
    with pytest.raises(ValueError, match="leave one token"):
        record.rerun.answer([])
    with pytest.raises(ValueError, match="context length"):
        record.rerun.logprobs(other * 40)


def test_a_prompt_is_searched_with_a_beam_if_asked():
    predictor = generator("characters")
    wide = record_attention(predictor, "the cat", tokens=5, beam=4)
    greedy = record_attention(predictor, "the cat", tokens=5)
    assert sum(wide.rerun.logprobs()) >= sum(greedy.rerun.logprobs()) - 1e-4
    with pytest.raises(ValueError, match="beam 4 and temperature"):
        record_attention(predictor, "the cat", beam=4, temperature=1.0)


# -- encoders


def test_masked_words_are_filled_and_their_own_rows_shown():
    predictor = masked_lm()
    text = "the [MASK] sits on [MASK] mat"
    record = record_attention(predictor, text)
    filled = predictor.fill(text, top=1)
    masked = [n for n, label in enumerate(record.axes["tokens"].labels) if label == "[MASK]"]
    assert record.answer.text == filled.text
    assert [item.text for item in record.answer.items] == [words[0].text.removeprefix("##") for words in filled.predictions]
    for item, words in zip(record.answer.items, filled.predictions, strict=True):
        assert item.probability == pytest.approx(words[0].probability, rel=1e-3)
    _, recorded = watched(predictor.model, torch.tensor([record.rerun.source]))
    for layer in record.layers:
        torch.testing.assert_close(layer.weights, recorded[layer.name][0][0], atol=1e-5, rtol=0)
    for row, position in enumerate(masked):
        rows = [layer.weights[head, position] for layer in record.layers for head in range(layer.heads)]
        torch.testing.assert_close(record.alignment[row], sum(rows) / len(rows))
    assert "[MASK]" in [word.text for word in record.axes["tokens"].words]
    assert_rows_sum_to_one(record)
    torch.testing.assert_close(record.rerun.logprobs().exp(), torch.tensor([item.probability for item in record.answer.items]),
                               rtol=1e-3, atol=1e-6)  # fmt: skip
    without = [token for n, token in enumerate(record.rerun.source) if n != masked[0]]
    with pytest.raises(ValueError, match=r"1 masked words instead of 2; keep every \[MASK\]"):
        record.rerun.logprobs(without)
    assert len(record.rerun.answer(without).items) == 1


@pytest.mark.parametrize("make", [masked_lm, text_embedder])
def test_an_encoder_without_an_answer_shows_what_each_token_attends_to(make):
    record = record_attention(make(), TEXT)
    assert (record.answer.kind, record.answer.items, record.alignment_axes) == ("none", [], ("tokens", "tokens"))
    heads = [layer.weights[head] for layer in record.layers for head in range(layer.heads)]
    torch.testing.assert_close(record.alignment, sum(heads) / len(heads))
    assert record.rerun.logprobs().shape == (0,)
    assert record.rerun.answer() == record.answer
    assert_rows_sum_to_one(record)
    with pytest.raises(ValueError, match="beam 2 is for models that write"):
        record_attention(make(), TEXT, beam=2)


def test_a_text_classifier_shows_its_classes_and_the_row_of_its_start_token():
    predictor = text_classifier()
    record = record_attention(predictor, TEXT)
    [wanted] = predictor.classify([TEXT], top=3)
    assert [item.text for item in record.answer.items] == [best.text for best in wanted]
    assert [item.probability for item in record.answer.items] == pytest.approx([best.probability for best in wanted], rel=1e-4)
    assert {item.query for item in record.answer.items} == {0}
    rows = [layer.weights[head, 0] for layer in record.layers for head in range(layer.heads)]
    torch.testing.assert_close(record.alignment, (sum(rows) / len(rows))[None])
    assert record.alignment_title == "self-attention of [CLS], mean of 2 layers and 3 heads"
    assert_rows_sum_to_one(record)
    torch.testing.assert_close(record.rerun.logprobs().exp().sum(), torch.tensor(1.0))
    other = record.rerun.source[:3] + record.rerun.source[-1:]
    with torch.inference_mode():
        logits = predictor.model.classify(torch.tensor([other]))[0].log_softmax(-1)
    names = [predictor.labels.index(item.text) for item in record.answer.items]
    torch.testing.assert_close(record.rerun.logprobs(other), logits[names])


def test_names_of_special_tokens_are_text_to_a_classifier_as_they_are_when_it_classifies():
    predictor, text = text_classifier(), "the cat [SEP] runs [MASK]"
    record = record_attention(predictor, text)
    [[best]] = predictor.classify([text])
    assert record.answer.items[0].probability == pytest.approx(best.probability, rel=1e-4)
    assert record.axes["tokens"].special == [0, record.axes["tokens"].size - 1]


def test_a_real_tokenizer_has_whole_words(minilm, tmp_path):
    tokenizer = Tokenizer.load(minilm / "tokenizer.json")
    text = "Unbelievably, the Zürich café's naïve reinterpretation costs 3.50 €!"
    [ids] = tokenizer.encode([text])
    axis = text_axis(tokenizer, [tokenizer.special.bos, *ids, tokenizer.special.eos], text, 1 + len(ids))
    assert [word.text for word in axis.words] == ["[CLS]", "Unbelievably", ",", "the", "Zürich", "café's", "naïve",
                                                  "reinterpretation", "costs", "3.50", "€", "!", "[SEP]"]  # fmt: skip
    assert any(word.end - word.start > 1 for word in axis.words)


def test_a_model_that_has_no_attention_at_all_says_what_to_use():
    config = ELMoConfig(vocab=20, dim=8, cells=8, filters=[2, 2], output_vocab=10)
    model = ELMo(config)
    predictor = BidirectionalLM(model, None, make_run(model, "elmo", "bidirectional_lm"))
    with pytest.raises(ValueError, match=r"^tiny has LSTMs and no attention to show"):
        record_attention(predictor, "abc")


# -- observers


class Reader:
    """Someone who reads along, for some steps."""

    def __init__(self, steps: int = 1000):
        self.texts, self.steps = [], steps

    @property
    def wanted(self) -> bool:
        return len(self.texts) < self.steps

    def partial(self, text: str) -> None:
        self.texts.append(text)


OBSERVED = {
    "translator": (lambda: translator("transformer"), TEXT, {"tokens": 8}),
    "translator, beam": (lambda: translator("transformer", beam=3), TEXT, {"tokens": 8}),
    "translator, sample": (lambda: translator("transformer"), TEXT, {"tokens": 8, "temperature": 1.0}),
    "generator": (generator, TEXT, {"tokens": 8}),
    "generator, sample": (generator, TEXT, {"tokens": 8, "temperature": 1.0}),
    "generator, beam": (generator, TEXT, {"tokens": 8, "beam": 2}),
    "captioner": (lambda: captioner("caption-transformer"), random_image(), {"beam": 1}),
    "captioner, beam": (captioner, random_image(), {"beam": 3}),
    "transcriber": (lambda: untrained("joint"), say("a b"), {"beam": 2}),
    "transcriber, greedy": (lambda: untrained("attention"), say("a b"), {"beam": 1}),
}


@pytest.mark.parametrize("case", OBSERVED)
def test_an_observer_reads_the_answer_while_it_grows_and_changes_nothing(case):
    make, what, options = OBSERVED[case]
    reader = Reader()
    record = record_attention(make(), what, **options, observer=reader)
    assert record.answer == record_attention(make(), what, **options).answer
    assert len(reader.texts) > 2
    assert reader.texts[-1] == record.answer.text
    if "beam" not in case and "joint" not in case and case != "transcriber":
        assert all(after.startswith(before.rstrip("\ufffd")) for before, after in itertools.pairwise(reader.texts))
    seen = len(reader.texts)
    record.rerun.answer()
    assert len(reader.texts) == seen  # who ran it again is not the one who read along


@pytest.mark.parametrize("case", [case for case in OBSERVED if "beam" not in case])
def test_a_search_that_nobody_waits_for_ends(case):
    make, what, options = OBSERVED[case]
    reader = Reader(2)
    record_attention(make(), what, **options, observer=reader)
    assert len(reader.texts) <= 3


# -- any record


@pytest.mark.parametrize("make", [lambda: translator("transformer"), generator, masked_lm])
def test_recording_leaves_no_trace(make):
    predictor = make()
    before = {name: p.clone() for name, p in predictor.model.named_parameters()}
    record_attention(predictor, TEXT)
    assert all(tap_of(part) is None for part in predictor.model.modules())
    assert all(torch.equal(p, before[name]) for name, p in predictor.model.named_parameters())


def test_a_rollout_follows_the_self_attention_of_a_stack():
    record = record_attention(translator("transformer"), TEXT, tokens=5)
    for stack, axis in (("encoder", "source"), ("decoder", "read")):
        layers = [layer for layer in record.layers if layer.stack == stack and layer.kind != "cross"]
        size = record.axes[axis].size
        wanted = torch.eye(size)
        for layer in layers:
            wanted = (layer.weights.mean(0) / 2 + torch.eye(size) / 2) @ wanted
        torch.testing.assert_close(rollout_of(record, stack), wanted)
    with pytest.raises(ValueError, match="there is no rollout"):
        rollout_of(record, "nowhere")


def test_thumbnails_keep_the_largest_weight_of_each_cell():
    torch.manual_seed(0)
    layer = AttentionLayer("a", "a", "self", "", "t", "t", torch.rand(2, 20, 8).softmax(-1))
    small = thumbnails(layer, 5)
    assert small.shape == (2, 5, 5)
    for row in range(5):
        rows = slice(row * 20 // 5, (row + 1) * 20 // 5)
        for column in range(5):
            columns = slice(column * 8 // 5, -(-(column + 1) * 8 // 5))
            torch.testing.assert_close(small[:, row, column], layer.weights[:, rows, columns].amax((1, 2)))
    torch.testing.assert_close(thumbnails(layer), layer.weights)


def test_a_tile_is_a_part_of_the_matrix_and_no_other_is_given():
    torch.manual_seed(0)
    windows = Windows(torch.tensor([[0, 2], [1, -1]]), torch.tensor([[0, 3], [2, -1]]), (3, 4))
    layer = AttentionLayer("a", "a", "self", "", "t", "t", torch.rand(2, 3, 2, 2), windows)
    dense = torch.zeros(3, 3, 4)
    for n, (queries, keys) in enumerate(zip(windows.queries.tolist(), windows.keys.tolist(), strict=True)):
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                if query >= 0 and key >= 0:
                    dense[:, query, key] = layer.weights[n, :, i, j]
    for head in range(3):
        assert torch.equal(layer.dense(head), dense[head])
        for top in range(3):
            for rows in range(1, 4 - top):
                for left in range(4):
                    for columns in range(1, 5 - left):
                        tile = layer.dense(head, top, left, rows, columns)
                        assert torch.equal(tile, dense[head, top : top + rows, left : left + columns])
        torch.testing.assert_close(layer.received(head), dense[head].mean(0))
    torch.testing.assert_close(layer.dense(), dense.mean(0))
    torch.testing.assert_close(layer.received(), dense.mean((0, 1)))
    torch.testing.assert_close(thumbnails(layer), dense)
    assert math.isclose(float(thumbnails(layer, 1)[1]), float(dense[1].max()))
    for tile in ((0, -1, 0, 1, 1), (0, 0, 0, 4, 1), (0, 0, 3, 1, 2), (0, 0, 0, 0, 1)):
        with pytest.raises(ValueError, match="ask for a tile inside"):
            layer.dense(*tile)
    with pytest.raises(ValueError, match="no head 3; a has heads 0 to 2"):
        layer.dense(3)
