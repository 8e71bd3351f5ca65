"""SentencePiece files of checkpoints: the same tokens and texts as Hugging Face's tokenizers, and one line for what is wrong."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from spm_checkpoints import CODES, hostile, lines, marian_folder, pieces, spm, tokenizer_folder, train_spm
from text_checkpoints import assert_run_refused, update_json

from regard.data.text.sentencepiece import ESCAPE, REPLACED
from regard.data.text.tokenizer import Tokenizer
from regard.interop.hf import export_run, import_run
from regard.interop.sentencepiece import read_sentencepiece
from regard.interop.sentencepiece_tokenizer import read_marian_tokenizers, read_t5_tokenizer
from regard.tasks import read_run
from regard.tasks.load import load

DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
SETS = [(f"multi30k/train.{name}.gz", (0,)) for name in ("en", "de", "fr")]
SETS += [(f"tatoeba-en-{name}/train.tsv.gz", (0, 1)) for name in ("de", "fr", "hi", "it")]
SETS += [("iitb-sample-en-hi/train.tsv.gz", (0, 1)), ("wiki-hi-en-multiref/test.tsv.gz", (0, 1))]
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
FOLDERS: dict[str, dict[str, Any]] = {
    "shared": {},
    "pieces lacking": {"lacking": 60},
    "separate": {"separate": True, "lacking": 10},
    "languages": {"codes": CODES, "scripts": ("devanagari", "latin")},
    "other order": {"first": ("<pad>", "<s>", "</s>", "<unk>")},
    "bpe": {"model_type": "bpe", "lacking": 30},
    "bytes": {"byte_fallback": True, "vocab": 600, "lacking": 100},
    "no normalization": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "no dummy prefix": {"add_dummy_prefix": False, "normalization_rule_name": "nfkc_cf"},
    "symbols": {"user_defined_symbols": ["<sep>", "▁the▁end", "ab"]},
    "bpe symbols": {"user_defined_symbols": ["<sep>", "ab"], "model_type": "bpe"},
}


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spm") / "marian"
    tokenizer_folder(folder, **FOLDERS[request.param])
    return folder


def ours(folder: Path) -> list[Tokenizer]:
    """The tokenizers of source and target, written to a file and read again."""
    sizes = [len(json.loads(file.read_text())) for file in (folder / "vocab.json", folder / "target_vocab.json") if file.exists()]
    options = json.loads((folder / "tokenizer_config.json").read_text())
    found = []
    for n, inner in enumerate(read_marian_tokenizers(folder, options, sizes[0], sizes[1] if sizes[1:] else 0)):
        Tokenizer(inner).save(folder / f"{n}.json")
        found.append(Tokenizer.load(folder / f"{n}.json"))
    return found


def assert_same(folder: Path, texts: list[str]) -> None:
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    for side, tokenizer in zip(("text", "text_target"), ours(folder), strict=True):
        wanted = [ids[:-1] for ids in theirs(**{side: texts})["input_ids"]]
        found = tokenizer.encode(texts)
        assert [(t, a) for t, a, b in zip(texts, found, wanted, strict=True) if a != b] == []
        spans = tokenizer.offsets(texts)
        assert [len(line) for line in spans] == [len(ids) for ids in found]
        assert all(0 <= a <= b <= len(text) for text, line in zip(texts, spans, strict=True) for a, b in line)
        if side == "text_target" or not theirs.separate_vocabs:
            assert [tokenizer.decode(ids) for ids in wanted] == theirs.batch_decode(wanted, skip_special_tokens=True)


def test_tokens_and_texts_are_those_of_marian_tokenizer(folder):
    assert_same(folder, [*hostile(400), *lines()[:60], *lines("cyrillic")[:60], *lines("devanagari")[:60]])


def test_random_tokens_decode_as_in_marian_tokenizer(folder):
    """Also bytes that are not characters."""
    theirs, rng = transformers.MarianTokenizer.from_pretrained(folder), random.Random(1)
    target = ours(folder)[1]
    rows = [[rng.randrange(target.vocab) for _ in range(rng.randint(1, 12))] for _ in range(300)]
    assert [target.decode(row) for row in rows] == theirs.batch_decode(rows, skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "multi30k").exists(), reason="set REGARD_DATA to a folder that holds multi30k/, tatoeba-*/ and others"
)
def test_ten_thousand_sentences_are_split_as_by_marian_tokenizer(folder):
    texts: list[str] = []
    for name, columns in SETS:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as rows:
            found = [row.rstrip("\n").split("\t") for row in rows]
        texts += [row[column] for row in random.Random(1).sample(found, min(len(found), 800)) for column in columns]
    assert len(texts) >= 10_000
    assert_same(folder, [*texts, *hostile(3000)])


def test_what_a_text_spells_is_never_a_special_token(folder):
    for tokenizer in ours(folder):
        special = {*tokenizer.special_ids} - {tokenizer.special.unk}
        rows = tokenizer.encode(["</s> <pad> <s> a</s>", f"{ESCAPE}a {ESCAPE}>>rus<< {ESCAPE}</s> {REPLACED}", ESCAPE])
        assert not special & {index for row in rows for index in row}
        assert max(index for row in rows for index in row) < tokenizer.vocab


def test_the_offsets_are_those_of_the_words_in_the_text(tmp_path):
    tokenizer_folder(tmp_path / "marian", codes=CODES)
    tokenizer, text = ours(tmp_path / "marian")[0], ">>rus<<  The   ﬁle\u00a0is\topen "
    tokens, spans = tokenizer.ids_to_tokens(tokenizer.encode([text])[0]), tokenizer.offsets([text])[0]
    assert (tokens[0], spans[0]) == (">>rus<<", (0, 7))
    starts = [text[b:].split()[0] if text[a:b].isspace() else text[a:].split()[0]
              for token, (a, b) in zip(tokens, spans, strict=True) if token.startswith("▁")]  # fmt: skip
    assert starts == ["The", "ﬁle", "is", "open"]


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "t5"
    folder.mkdir()
    train_spm(folder / "spiece.model", [*lines(), *lines("devanagari")], 400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}))
    return folder


def test_spiece_model_is_read_as_t5s_tokenizer(t5_folder):
    theirs, inner = transformers.T5Tokenizer.from_pretrained(t5_folder), read_t5_tokenizer(t5_folder, {})
    texts = [text for text in [*hostile(700), *lines("devanagari")[:100]] if "<" not in text]
    tokenizer = Tokenizer(inner)
    wanted = [ids[:-1] for ids in theirs(texts)["input_ids"]]
    assert tokenizer.encode(texts) == wanted
    assert [tokenizer.decode(ids) for ids in wanted] == theirs.batch_decode(wanted, skip_special_tokens=True)
    sentinels = theirs.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(100)])
    special = tokenizer.special
    assert (special.pad, special.eos, special.unk, special.bos, list(special.sentinels)) == (0, 1, 2, 0, sentinels)


def test_a_model_is_read_as_sentencepiece_reads_it(folder):
    for name in ("source.spm", "target.spm"):
        read, theirs = read_sentencepiece(folder / name), spm.SentencePieceProcessor(model_file=str(folder / name))
        assert [(piece.text, piece.score) for piece in read.pieces] == [
            (theirs.id_to_piece(n), theirs.get_score(n)) for n in range(len(theirs))
        ]
        assert read.unk == theirs.unk_id()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opus") / "opus-mt"
    marian_folder(folder, codes=CODES)
    return folder


def test_a_language_code_holds_for_every_sentence_of_a_text(published, tmp_path):
    import_run(published, tmp_path / "run")
    translator = load(tmp_path / "run", device="cpu")
    texts = ["Training is fast.", "The model reads 3 files."]
    each = [translator.translate([f"{code} {text}"], protect=False)[0].text for code in CODES for text in texts]
    assert each[:2] != each[2:]
    whole = [f"{code} {' '.join(texts)}" for code in CODES]
    answers = translator.translate([whole[1], "no code", whole[0]], protect=False)
    assert [answers[2].text, answers[0].text] == [" ".join(each[:2]), " ".join(each[2:])]
    assert answers[0].sentences == 2
    assert translator.translate(whole[:1])[0].tokens  # protection looks at offsets


def test_a_run_has_a_tokenizer_for_each_side_and_is_not_exported_or_trained(published, tmp_path, regard):
    assert import_run(published, tmp_path / "run") == ()
    assert {"tokenizer.json", "target_tokenizer.json"} <= {file.name for file in (tmp_path / "run").iterdir()}
    assert read_run(tmp_path / "run" / "run.toml").languages == "en-ru"  # tokenizer_config.json has eng and rus
    with pytest.raises(
        ValueError, match=r"has a tokenizer made of source\.spm, target\.spm and vocab\.json, which regard does not"
    ):
        export_run(tmp_path / "run", tmp_path / "theirs")
    result = regard("train", "copy", "--out", tmp_path / "new", f"init={tmp_path / 'run'}")
    assert result.code == 2
    assert "has a tokenizer of its own for the target; such a model is imported to translate" in result.err


def test_one_model_for_both_sides_makes_one_tokenizer(published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "marian")
    shutil.copy(folder / "source.spm", folder / "target.spm")
    import_run(folder, tmp_path / "run")
    assert not (tmp_path / "run" / "target_tokenizer.json").exists()


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def enlarge(folder: Path) -> None:
    with open(folder / "source.spm", "r+b") as file:
        file.truncate(80 << 20)


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def drop_eos(folder: Path) -> None:
    ids = json.loads((folder / "vocab.json").read_text())
    ids["x"] = ids.pop("</s>")
    (folder / "vocab.json").write_text(json.dumps(ids))


def other_pieces(folder: Path) -> None:
    train_spm(folder / "source.spm", lines("devanagari"))


def piece(kind: int, text: bytes = b"zz") -> bytes:
    """A piece of a type as a field of a ModelProto."""
    inner = b"\x0a" + bytes([len(text)]) + text + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(inner)]) + inner


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (edit("source.spm", lambda b: b[: len(b) // 2]), r"source\.spm is not a SentencePiece model, or is damaged"),
    "empty": (write("target.spm", b""), r"target\.spm is not .* damaged \(it has no pieces\); download it"),
    "text": (write("source.spm", b"version https://git-lfs.github.com/spec/v1\n"), r"source\.spm is not a SentencePiece model"),
    "huge": (enlarge, r"source\.spm has 83,886,080 bytes, more than 67,108,864: it is not a SentencePiece model"),
    "endless number": (write("source.spm", b"\x08" + b"\xff" * 20), r"\(a number at byte 1 does not end\); download it again"),
    "unknown type": (edit("source.spm", lambda b: b + piece(9)), r"source\.spm has the piece 'zz' of the unknown type 9"),
    "not utf-8": (edit("source.spm", lambda b: b + piece(1, b"\xff")), r"damaged \(a piece is not UTF-8\); download"),
    "twice": (edit("source.spm", lambda b: b + piece(1) * 2), r"damaged \(it has a piece twice\); download"),
    "no target": (lambda folder: (folder / "target.spm").unlink(), r"there is no target\.spm, which a Marian tokenizer needs"),
    "no source": (lambda folder: (folder / "source.spm").unlink(), r"there is no tokenizer\.json, and no source\.spm, the"),
    "no vocabulary": (lambda folder: (folder / "vocab.json").unlink(), r"there is no vocab\.json, which a Marian tokenizer"),
    "ids too large": (lambda folder: update_json(folder / "vocab.json", zz=70_000), r"vocab\.json has the id 70,000, its"),
    "ids twice": (lambda folder: update_json(folder / "vocab.json", zz=3), r"vocab\.json is damaged \(each token must"),
    "ids no numbers": (lambda folder: update_json(folder / "vocab.json", zz="3"), r"vocab\.json is damaged \(each token must"),
    "no end": (drop_eos, r"vocab\.json has no </s>; it is not the vocabulary of a Marian model: download it again"),
    "other pieces": (other_pieces, r"vocab\.json has \d+ of the \d+ pieces of source\.spm; they are not from"),
    "noncharacter": (lambda folder: update_json(folder / "vocab.json", **{ESCAPE: 3}), r"vocab\.json "),
    "pickle": (only_pickle, r"pytorch_model\.bin is a pickle, which can run any code .*convert it where you trust it: "
                            r"transformers\.MarianMTModel\.from_pretrained\(\.\.\.\)\.save_pretrained"),
    "separate": (lambda folder: update_json(folder / "tokenizer_config.json", separate_vocabs=True), r"separate_vocabs = True"),
    "sampling": (lambda folder: update_json(folder / "tokenizer_config.json", sp_model_kwargs={"nbest_size": 5}),
                 r"tokenizer_config\.json has sp_model_kwargs = \{'nbest_size': 5\}; regard's model has \{\}"),
    "names": (lambda folder: update_json(folder / "tokenizer_config.json", eos_token="<end>"), r"has eos_token = '<end>'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_checkpoint_is_said_in_one_line(name, published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "marian")
    change, message = BAD[name]
    change(folder)
    assert_run_refused(folder, message)


@pytest.mark.parametrize(("options", "message"), [
    ({"model_type": "char"}, r"source\.spm has model_type = char; regard reads unigram and bpe; use another checkpoint"),
    ({"treat_whitespace_as_suffix": True}, r"source\.spm has treat_whitespace_as_suffix = true, which regard does not support"),
    ({"denormalization_rule_tsv": "RULES"}, r"source\.spm has a denormalizer, which regard does not support"),
], ids=str)  # fmt: skip
def test_a_model_that_would_be_read_otherwise_is_refused(options, message, published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "marian")
    (tmp_path / "rules.tsv").write_text("61\t62\n")
    train_spm(folder / "source.spm", lines(), 300, **{key: str(tmp_path / "rules.tsv") if value == "RULES" else value
                                                      for key, value in options.items()})  # fmt: skip
    assert_run_refused(folder, message)


def make_unused(file: Path, text: str) -> None:
    """Give a piece of a model the type UNUSED, which SentencePiece's tools for smaller vocabularies give."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())
    (found,) = (piece for piece in proto.pieces if piece.piece == text)
    found.type = found.UNUSED
    file.write_bytes(proto.SerializeToString())


def test_no_text_is_split_into_unused_pieces_of_a_unigram_model(tmp_path):
    tokenizer_folder(tmp_path / "marian")
    texts = ["the the model", *lines()[:200]]
    before = ours(tmp_path / "marian")[0].encode(texts)
    make_unused(tmp_path / "marian" / "source.spm", "▁the")
    assert ours(tmp_path / "marian")[0].encode(texts) != before
    assert_same(tmp_path / "marian", texts)


def test_a_bpe_model_with_unused_pieces_is_refused(published, tmp_path):
    """SentencePiece merges through them, and takes such a piece apart again at the end."""
    folder = shutil.copytree(published, tmp_path / "marian")
    train_spm(folder / "source.spm", lines(), 300, model_type="bpe")
    make_unused(folder / "source.spm", "▁the")
    assert_run_refused(folder, r"source\.spm is a BPE model with unused pieces, through which .*; use another checkpoint")


def test_every_prefix_of_a_model_is_read_or_refused(published, tmp_path):
    """No cut of a file makes the reader fail otherwise, or read what is not there."""
    whole = (published / "source.spm").read_bytes()
    known = pieces(spm.SentencePieceProcessor(model_file=str(published / "source.spm")))
    for cut in [*range(0, 400), *range(400, len(whole), 4001)]:
        (tmp_path / "cut.spm").write_bytes(whole[:cut])
        read, message = (), ""
        try:
            read = read_sentencepiece(tmp_path / "cut.spm").pieces
        except ValueError as error:
            message = str(error)
        assert bool(read) != message.startswith("cut.spm is not a SentencePiece model, or is damaged (")
        assert {piece.text for piece in read} <= {*known, "<unk>", "<s>", "</s>"}
