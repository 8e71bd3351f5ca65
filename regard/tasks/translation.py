"""Translation: sentence pairs in, an encoder-decoder that maps one to the other.

Labelled texts are pairs too, whose target is the name of the class; several sets make a mixture, each with its prefix (T5).
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.sources import SOURCES
from regard.data.text.batches import PairBatch, all_pair_batches, pad, pair_batches
from regard.data.text.bpe_dropout import BPEDropout
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, prepare_pairs, require_special
from regard.data.text.glossary import GlossaryLike, continuing_tokens, to_glossary
from regard.data.text.mixture import MixedStore
from regard.data.text.references import choose_references
from regard.data.text.rows import ReadNotes
from regard.data.text.splits import find_split, source_names, task_prefixes
from regard.data.text.store import PairStore, TextStore
from regard.data.text.tokenizer import Tokenizer, to_ids
from regard.decode import search
from regard.decode.constraints import Constraint, Required, constrained, required_phrases
from regard.decode.ensemble import Ensemble
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis, Observers
from regard.decode.workers import map_in_threads
from regard.layers.tap import attention_modules, tap_of
from regard.tasks.coverage import attention_to_source, source_coverage
from regard.tasks.joining import SentenceTranslator, Translation
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score
from regard.tasks.mixing import advise_mixing, mix_parts
from regard.tasks.observer import TextObserver, observe_sentences, quiet
from regard.tasks.origin import predictor_repr
from regard.tasks.overlap import trained_texts
from regard.tasks.paragraphs import translate_texts
from regard.tasks.r_drop import linear_r_drop
from regard.tasks.scoring import score_translations
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context

__all__ = ["TASK", "EncoderDecoder", "Sampling", "TranslatedSplit", "Translation", "Translator", "batch_pairs",
           "read_references", "sequence_loss", "translate_split", "validate_pairs"]  # fmt: skip

MIN_SENTENCES = 4  # fewest sentences per thread
MAX_THREADS = 8  # each holds a batch of its own
KINDS = ("encoder-decoder",)


class EncoderDecoder(Protocol):
    """What this task asks of a model."""

    output: nn.Linear
    max_len: float  # context length

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What the output layer reads: (B, S) and (B, T) → (B, T, D)."""


@dataclass(frozen=True)
class Sampling:
    """How to sample an answer instead of searching for the best."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Translator:
    """A trained encoder-decoder with its tokenizer."""

    VERBS: ClassVar = ("translate", "ask")  # of the command line
    INPUT: ClassVar = "text"

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run
    decode_ids: Callable[[Tokenizer, list[int]], str] = Tokenizer.decode  # how the ids of an answer become text
    target_tokenizer: Tokenizer | None = None  # of the answers, if their vocabulary is not the source's
    others: tuple[nn.Module, ...] = ()  # models that decode with this one, see `ensemble`

    def ensemble(self, *others: "Translator") -> "Translator":
        """Translate with several models at once: the probability of each next token is the mean of theirs.

        They must have the same tokenizer, as runs on the same data have.  Attention, which places protected spans and measures
        coverage, is that of this model; `decode` too, whose repetition_penalty acts on the log-probability of a token.
        """
        for other in others:
            ours, theirs = ((each.tokenizer.digest, each.answer_tokenizer.digest) for each in (self, other))
            if ours != theirs:
                raise ValueError(f"{other!r} has another tokenizer than {self!r}; an ensemble is of models that were trained on "
                                 "the same data, or with init= of the same run")  # fmt: skip
        models = tuple(model for other in others for model in (other.model, *other.others))
        return replace(self, others=(*self.others, *models))

    @property
    def answer_tokenizer(self) -> Tokenizer:
        """The tokenizer of the answers."""
        return self.target_tokenizer or self.tokenizer

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The task prefixes this model was trained with, if any."""
        return task_prefixes(self.run.data)

    @property
    def max_len(self) -> int:
        """The most tokens of a source sentence."""
        return int(min(self.run.data.max_len, self._context - 1))

    def max_answer(self, source: int, wanted: int | None = None) -> int:
        """The most tokens of an answer to a source of that many: as wanted, else the run's, else more than it needs."""
        return int(min(wanted or self.run.decode.max_length or 2 * source + 20, self._context))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without an end token; a sentinel such as <extra_id_0> is one token, if the model knows sentinels."""
        if isinstance(texts, str):
            raise ValueError("translate wants a list of sentences, not one string; put it in brackets")
        ids = self.tokenizer.special.sentinels if all(isinstance(text, str) for text in texts) else ()
        known = {name: [token] for name, token in zip(self.tokenizer.ids_to_tokens(ids), ids, strict=True)}
        pieces = [re.split(r"(<extra_id_\d+>)", text) if known else [text] for text in texts]
        encoded = iter(self.tokenizer.encode([piece for text in pieces for piece in text]))
        return [[token for piece in text for token in known.get(piece, next(encoded))] for text in pieces]

    def require_short(self, ids: Sequence[int], number: int) -> None:
        """Refuse a sentence that is longer than the model takes, by its number."""
        if len(ids) > self.max_len:
            raise ValueError(f"sentence {number} has {len(ids):,} tokens; this model takes at most {self.max_len}: "
                             f"split it into sentences")  # fmt: skip

    @property
    def splits(self) -> bool:
        """Whether texts are split into sentences by default: not if the model was trained with task prefixes or sentinels."""
        return not self.prefixes and not self.tokenizer.special.sentinels

    def translate(
        self, texts: Sequence[str] | Sequence[list[int]], *, beam: int | None = None, n_best: int = 1,
        length_penalty: float | None = None, tokens: int | None = None, batch: int | None = None,
        glossary: GlossaryLike | None = None,
        temperature: float | None = None, top_k: int = 0, top_p: float = 1.0, seed: int = 0, scored: bool = False,
        split: bool | None = None, protect: bool | None = None, details: bool = False,
        progress: Callable[[int], None] = lambda done: None, observers: Sequence[TextObserver | None] | None = None,
    ) -> list[Translation]:  # fmt: skip
        """Translate texts, or single sentences as the token ids that `encode` returns.

        A text is split into lines and sentences, translated and put together again with its spaces and line breaks; a sentence
        that is too long is cut at a clause or a word.  `split=False` keeps one as one, and refuses a too long one by its number.
        Placeholders, tags, URLs, e-mail addresses, emoji and numbers are kept as they are, unless `protect=False`.  Both are off
        for models with task prefixes or sentinels unless asked for.  Of token ids nothing is split or protected.

        `beam` and `length_penalty` are the run's unless given; with a `temperature` an answer is sampled instead of searched for.
        `tokens` is the most tokens of the answer to a sentence.  Greedy answers and samples have scores only if `scored`.
        `details` asks for the probability of each token and the coverage of the source by attention.  An empty text stays empty.
        A `glossary` (a file of lines with source term, tab, target term; or a dictionary) gives translations that an answer must
        use.

        `observers`, one for each text, follow its translation while it is decoded; that of a text that is no longer wanted is
        unfinished.  Protected spans are put in after what they see.
        """
        if observers is not None and len(observers) != len(texts):
            raise ValueError(f"{len(observers)} observers for {len(texts)} texts; give one for each, or None")
        decode = self.run.decode
        width, size = decode.beam_size if beam is None else beam, decode.batch_size if batch is None else batch
        penalty = decode.length_penalty if length_penalty is None else length_penalty
        if temperature is not None and beam is not None and beam > 1:
            raise ValueError(f"beam {beam} and temperature {temperature}; search with a beam or sample with a temperature")
        _check_options(width, n_best, size, penalty, temperature, top_k, top_p, seed)
        if tokens is not None and tokens < 1:
            raise ValueError(f"answers of {tokens} tokens; ask for 1 or more")
        sampling = None if temperature is None else Sampling(temperature, top_k, top_p, seed)
        glossary = to_glossary(glossary) if glossary is not None else None

        def translate_ids(sources: list[list[int]], phrases: list[list[list[int]]] | None,
                          observers: Observers | None) -> list[Translation]:  # fmt: skip
            for number, ids in enumerate(sources, 1):
                self.require_short(ids, number)

            def report(done: int) -> None:  # in texts, of which each may have several sentences
                progress(done * len(texts) // len(sources))

            # Nothing can be required of a sample, nor of an answer that has no room for it.
            phrases = None if sampling or phrases is None else [
                some if sum(map(len, some)) + 2 <= self._room(ids, some, tokens) else []
                for ids, some in zip(sources, phrases, strict=True)
            ]  # fmt: skip
            answers = self.search(sources, beam=1 if sampling else width, batch=size, penalty=penalty, scored=scored,
                                  logprobs=details, tokens=tokens, sampling=sampling, constraints=phrases, glossary=glossary,
                                  progress=report, observers=observers)  # fmt: skip
            best = [self._translation(ids, found[:n_best]) for ids, found in zip(sources, answers, strict=True)]
            if details:
                special = self.tokenizer.special, self.answer_tokenizer.special
                covered = source_coverage(self.model, special, sources, [answer.ids for answer in best])
                best = [replace(answer, coverage=part) for answer, part in zip(best, covered, strict=True)]
            return best

        sources = to_ids(texts, self.encode)
        target = self.answer_tokenizer
        if texts and isinstance(texts[0], list):
            whole, to_text = [["", "", ""]] * len(texts), partial(self.decode_ids, target)
            return translate_ids(sources, None, None if observers is None else observe_sentences(observers, whole, to_text))
        split, protect = self.splits if split is None else split, self.splits if protect is None else protect
        how = SentenceTranslator(self.encode, target.encode, partial(self.decode_ids, target), target.ids_to_tokens,
                                 translate_ids, self.tokenizer.offsets, self._attend, self.max_len, target.special.unk,
                                 penalty)  # fmt: skip
        languages: dict[tuple[int, ...], list[int]] = {}  # code of a language → texts that begin with it
        rests: list[str] = []
        for row, text in enumerate(texts):
            code, rest = self.tokenizer.split_language(text)  # type: ignore[arg-type]
            languages.setdefault(tuple(code), []).append(row)
            rests.append(rest.lstrip(" ") if code else rest)
        answers: dict[int, Translation] = {}
        for language, rows in languages.items():
            found = translate_texts(
                how.into(language), [rests[row] for row in rows], [sources[row] for row in rows], split, protect,
                None if observers is None else [observers[row] for row in rows],
            )  # fmt: skip
            answers.update(zip(rows, found, strict=True))
        return [answers[row] for row in range(len(texts))]

    def _attend(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[list[float]] | None]:
        """The attention of the tokens of each translation to those of its source, if the model has cross-attention."""
        special = self.tokenizer.special, self.answer_tokenizer.special
        found = attention_to_source(self.model, special, sources, targets)
        return [None if weights is None else weights.tolist() for weights in found]

    def _room(self, source: list[int], phrases: list[list[int]], tokens: int | None) -> int:
        """The most tokens of an answer that must contain phrases."""
        return int(min(self.max_answer(len(source)) + sum(map(len, phrases)), self._context) if tokens is None else tokens)

    def _translation(self, source: list[int], hypotheses: list[Hypothesis]) -> Translation:
        best = [
            Translation(
                self.decode_ids(self.answer_tokenizer, ids), self.answer_tokenizer.ids_to_tokens(ids), ids, score,
                probabilities=[math.exp(logprob) for logprob in (logprobs or [])[: len(ids)]],
                source_tokens=len(source), unknown=source.count(self.tokenizer.special.unk),
            )
            for ids, score, logprobs in hypotheses
        ]  # fmt: skip
        return replace(best[0], n_best=best)

    def search(
        self, sources: Sequence[list[int]], *, beam: int, batch: int, penalty: float, scored: bool = False,
        logprobs: bool = False, tokens: int | None = None, sampling: Sampling | None = None,
        constraints: Sequence[Sequence[Constraint]] | None = None, glossary: GlossaryLike | None = None,
        progress: Callable[[int], None] = lambda done: None, observers: Observers | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Token ids in, token ids out: the answers to each sentence, best first, in the order of the sentences.

        `logprobs` asks for the log-probability of each token.  `constraints` are phrases, for each sentence, that its answers
        must contain: each is a list of token ids, or a list of such alternatives.  A `glossary` adds a translation of each of its
        terms that a sentence has.  `observers`, one for each sentence, follow its search.
        """
        special, device = self.tokenizer.special, next(self.model.parameters()).device
        target = self.answer_tokenizer.special
        processor = logits_processor(self.run.decode, target.eos)
        ends: dict[str, Any] = {"bos": target.bos, "eos": target.eos, "penalty": penalty, "logprobs": logprobs,
                                "processor": processor}  # fmt: skip
        generator = torch.Generator(device).manual_seed(sampling.seed if sampling else 0)
        steps = Ensemble([decoder(model) for model in (self.model, *self.others)]) if self.others else decoder(self.model)

        if sampling is not None and (constraints is not None or glossary is not None):
            raise ValueError("phrases cannot be required of a sample; leave out the temperature")
        if constraints is not None and len(constraints) != len(sources):
            raise ValueError(f"constraints for {len(constraints)} sentences, got {len(sources)}; give a list for each")
        required = self._require(sources, constraints or [[]] * len(sources), glossary) if constraints or glossary else None

        def answer(rows: list[int]) -> list[list[Hypothesis]]:
            wanted = [row for row in rows if observers is None or (of := observers[row]) is None or of.wanted]
            found = dict(zip(wanted, answer_wanted(wanted), strict=True)) if wanted else {}
            return [found.get(row, [empty]) for row in rows]

        def answer_wanted(rows: list[int]) -> list[list[Hypothesis]]:
            following = None if observers is None else [observers[row] for row in rows]
            source = pad([sources[row] for row in rows], special).to(device)
            limits = torch.tensor([self.max_answer(len(sources[row]), tokens) for row in rows], device=device)
            if required is None or not any(required[row].phrases for row in rows):
                return plain(source, limits, following)
            needs = [required[row] for row in rows]
            more = torch.tensor([sum(need.shortest) if tokens is None else 0 for need in needs], device=device)
            return constrained(
                source, limits, (limits + more).clamp(max=int(min(self._context, 2**31))), needs, width=beam, eos=target.eos,
                decode=self.run.decode, plain=lambda source, limits: plain(source, limits, following),
                beam=lambda again, source, limits, width, allocation: search.beam(
                    steps, source, limits, width=width, allocation=allocation, observers=quiet(following, again), **ends),
            )  # fmt: skip

        def plain(source: Tensor, limits: Tensor, following: Observers | None) -> list[list[Hypothesis]]:
            if sampling is not None:
                drawn = search.sample(steps, source, limits, **ends, scored=scored, generator=generator, observers=following,
                                      temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)  # fmt: skip
                return [[hypothesis] for hypothesis in drawn]
            if beam == 1:
                found = search.greedy(steps, source, limits, **ends, scored=scored, observers=following)
                return [[hypothesis] for hypothesis in found]
            return search.beam(steps, source, limits, width=beam, observers=following, **ends)

        empty = Hypothesis([], 0.0 if scored or (beam > 1 and sampling is None) else None, [] if logprobs else None)
        answers = [[empty] for _ in sources]
        order = sorted((row for row, ids in enumerate(sources) if ids), key=lambda row: -len(sources[row]))
        threads = 1 if sampling else self._threads(len(order))  # samples come from one random stream
        size, done = max(1, min(batch, -(-len(order) // threads))), 0
        jobs = [order[start : start + size] for start in range(0, len(order), size)]
        with closing(map_in_threads(answer, jobs, threads)) as results:  # also if `progress` is interrupted
            for rows, hypotheses in results:
                for row, best in zip(rows, hypotheses, strict=True):
                    answers[row] = best
                done += len(rows)
                progress(done)
        return answers

    def _require(self, sources: Sequence[list[int]], constraints: Sequence[Sequence[Constraint]],
                 glossary: GlossaryLike | None) -> list[Required]:  # fmt: skip
        """What the answer to each sentence must contain."""
        eos, target = self.answer_tokenizer.special.eos, self.answer_tokenizer
        continuing = continuing_tokens(target)
        if glossary is None:
            return [required_phrases(phrases, eos, continuing) for phrases in constraints]
        terms = to_glossary(glossary)
        phrases = terms.phrases(target)
        found = ([phrases[term] for term in terms.find(self.tokenizer.decode(source))] for source in sources)
        return [required_phrases([*own, *more], eos, continuing) for own, more in zip(constraints, found, strict=True)]

    def _threads(self, sentences: int) -> int:
        """How many threads pay off, each on a core of its own."""
        threads = max(1, min(torch.get_num_threads(), MAX_THREADS, sentences // MIN_SENTENCES))
        if threads == 1 or next(self.model.parameters()).device.type != "cpu":
            return 1
        models = (self.model, *self.others)
        watched = any(tap_of(part) is not None for model in models for part in attention_modules(model).values())
        return 1 if watched else threads  # `watch` collects the steps in their order

    @property
    def _context(self) -> float:
        return min(float(model.max_len) for model in (self.model, *self.others))  # type: ignore[arg-type]


def _check_options(width: int, n_best: int, batch: int, penalty: float, temperature: float | None, top_k: int, top_p: float,
                   seed: int) -> None:  # fmt: skip
    """Refuse options that cannot be met, or would have no effect."""
    if width < 1 or not 1 <= n_best <= width:
        raise ValueError(f"beam {width} and n_best {n_best}; use a beam of 1 or more, and an n_best from 1 to the beam")
    if batch < 1:
        raise ValueError(f"batch {batch}; use 1 or more sentences at once")
    if not -10 <= penalty <= 10:
        raise ValueError(f"length_penalty {penalty}; use -10 to 10")
    if temperature is None and (top_k or top_p != 1):
        raise ValueError("top_k and top_p restrict sampling; give a temperature too, such as 1.0")
    if temperature is not None and n_best > 1:
        raise ValueError(f"n_best {n_best} with a temperature; a sample is one translation, use other seeds for others")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")


def sequence_loss(model: EncoderDecoder, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Teacher forcing: each target token is predicted from the source and the true tokens before it."""
    inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
    real = targets != batch.pad
    features = model.features(batch.source, inputs)[real]  # (N, D): no work on padding
    return linear_cross_entropy(features, model.output.weight, model.output.bias, targets[real], label_smoothing)


def sequence_r_drop(model: EncoderDecoder, batch: PairBatch, label_smoothing: float, r_drop: float) -> tuple[Tensor, Tensor]:
    """The same for two dropout masks at once, with the divergence between their predictions."""
    inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
    real = targets != batch.pad
    features = model.features(batch.source.repeat(2, 1), inputs.repeat(2, 1))[real.repeat(2, 1)]  # (2N, D)
    return linear_r_drop(features, model.output.weight, model.output.bias, targets[real], label_smoothing, r_drop)


def _pairs(store: PairStore | TextStore | MixedStore) -> PairStore | MixedStore:
    assert not isinstance(store, TextStore)
    return store


def batch_pairs(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[PairBatch]:
    """Endless batches by token count."""
    train, data = run.train, run.data
    change = BPEDropout(dataset.tokenizer, data.bpe_dropout, data.max_len) if data.bpe_dropout else None
    return pair_batches(_pairs(dataset.train), dataset.tokenizer.special, train.batch_tokens, train.seed, position, change)


def validate_pairs(run: Run, dataset: TextDataset) -> Iterator[PairBatch]:
    """Every validation pair once."""
    assert isinstance(dataset.valid, PairStore)
    return all_pair_batches(dataset.valid, dataset.tokenizer.special, run.train.batch_tokens)


def _validate_mixed(run: Run, dataset: TextDataset) -> dict[str, Iterator[PairBatch]]:
    special, tokens = dataset.tokenizer.special, run.train.batch_tokens
    return {name: all_pair_batches(valid, special, tokens) for name, valid in dataset.mixed}


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:

    def check(found: Tokenizer) -> None:
        require_special(found, tokenizer, TASK.name, pad=True)
        if run.data.bpe_dropout:
            found.bpe_merges()  # refuses an imported tokenizer

    return prepare_pairs(run.data, tokenizer, report, progress, task=TASK.name, check=check, mix=mix_parts(run))


def _check(run: Run, model: EncoderDecoder) -> None:
    if getattr(run.model, "target_vocab", 0):
        raise ValueError(f"{run.name} has a vocabulary of its own for the target; such a model is imported to translate, and "
                         f"cannot be trained: use one vocabulary for both")  # fmt: skip
    require_context(run, model.max_len, extra=1)


def _samples(translator: Translator, dataset: TextDataset) -> list[str]:
    answers = translator.translate([source for source, _ in dataset.samples], beam=1, split=False, protect=False)
    pairs = zip(dataset.samples, answers, strict=True)
    return [f"{source}  →  {answer.text}   (wanted: {wanted})" for (source, wanted), answer in pairs]


def _score(translator: Translator, split: str, options: ScoreOptions) -> list[Score]:
    """Score a split; each set of a mixture by itself."""
    names = source_names(translator.run.data)
    if len(names) > 1 and split not in ("train", "valid"):
        have = [name for name in names if name in SOURCES and split in SOURCES[name].splits]
        for name in sorted({*names} - {*have}) if have else ():
            options.report(f"{name} has no split {split}; not scored")
        names = have or [""]  # a file belongs to no set
    return [score for name in names for score in _score_set(translator, name, split, options)]


class TranslatedSplit(NamedTuple):
    """The sentences of a split, the reference translations of each, and a model's."""

    sources: list[str]
    references: list[list[str]]
    answers: list[str]


def read_references(data: TextData, split: str, name: str = "", limit: int | None = None,
                    report: Report = lambda line: None) -> tuple[list[str], list[list[str]]]:  # fmt: skip
    """The sentences of a split, or of a file, and the reference translations of each; of a mixture, those of the set `name`."""
    found, notes = find_split(data, split, name), ReadNotes(data.strict)
    rows = list(islice(found.references(notes) if found.references else found.pairs(), limit))
    for line in notes.lines():
        report(line)
    if not rows:
        raise ValueError(f"{split} is empty; give a file with source and target on each line")
    if found.references:
        return [row[0] for row in rows], choose_references(rows, len(data.columns.split(",")) - 1)
    pairs = [(row[0], row[1]) for row in rows]
    if not (name in SOURCES and SOURCES[name].several):
        return [source for source, _ in pairs], [[target] for _, target in pairs]
    grouped: dict[str, list[str]] = {}
    for source, target in pairs:
        grouped.setdefault(source, []).append(target)
    return list(grouped), list(grouped.values())


def translate_split(translator: Translator, split: str, options: ScoreOptions, name: str = "") -> TranslatedSplit:
    """Translate one split; a sentence too long for the model gets an empty translation."""
    sources, references = read_references(translator.run.data, split, name, options.limit, options.report)
    encoded = translator.encode(sources)
    short = [ids if len(ids) <= translator.max_len else [] for ids in encoded]
    if cut := sum(bool(ids) for ids in encoded) - sum(bool(ids) for ids in short):
        options.report(f"{cut} of {len(sources)} sentences are too long for this model and are scored as empty translations")
    answers = translator.translate(short, beam=options.beam_size, length_penalty=options.length_penalty,
                                   progress=options.progress)  # fmt: skip
    return TranslatedSplit(sources, references, [answer.text for answer in answers])


def _score_set(translator: Translator, name: str, split: str, options: ScoreOptions) -> list[Score]:
    """Translate one set and compare with its references."""
    data, (sources, references, answers) = translator.run.data, translate_split(translator, split, options, name)
    checked = options.trained_on if split != "train" else None
    trained = trained_texts(checked, sources, "sentences", options.report) if checked else None
    scores = score_translations(sources, references, answers, trained, options, tokenized=data.text == "tok", name=name)
    if name in SOURCES and SOURCES[name].kind == "labels":
        exact = next(score for score in scores if score.name == "exact match")
        how = exact.signature.replace("equal to a reference", "that are the class")
        scores = [exact._replace(name="accuracy", signature=how)]
    several = len(source_names(data)) > 1 and name
    return [score._replace(name=f"{name}: {score.name}") for score in scores] if several else scores


def _advice(run: Run, batches: int) -> str:
    if len(source_names(run.data)) < 2 or batches >= 4:
        return advise_mixing(run)
    return ("a batch holds texts of one length, so often of one set: a step of several batches trains a mixture better, such as "
            "train.batch_tokens=1024 train.accumulate=4")  # fmt: skip


TASK: Task[EncoderDecoder, TextDataset, PairBatch, Translator] = Task(
    name="translation",
    kinds=KINDS,
    data=TextData,
    card=Card("translates", "translation", "translate", 'translate(["…"])'),
    prepare=_prepare,
    batches=batch_pairs,
    validation=validate_pairs,
    mixed_validation=_validate_mixed,
    loss=sequence_loss,
    r_drop=sequence_r_drop,
    predictor=lambda model, run, tokenizer, labels: Translator(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=_check,
    advice=_advice,
    scored_by_search=True,
    int8=True,
    analyses_errors=True,
    score_limit=1000,
    score_text=lambda run: (
        f", at most 1,000 pairs of a set, beam {run.decode.beam_size}, length penalty {run.decode.length_penalty}"
    ),
)
