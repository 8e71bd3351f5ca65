"""`regard show RUN --names`: the stable names of what `watch` records."""

from cli_checks import assert_refused
from tiny_captioners import captioner, save_run

from regard import load
from regard.layers.tap import watch


def test_the_names_are_those_that_watch_records_with_their_heads(regard, small_run):
    result = regard("show", small_run, "--names")
    assert result.code == 0
    translator = load(small_run)
    with watch(translator) as recorded:
        translator.translate(["a b c"])
    heads = {name: calls[0].shape[1] for name, calls in recorded.items()}
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert [name for name, _ in lines] == list(recorded)
    assert {name: int(text.split()[0]) for name, text in lines} == heads
    assert all(text in (f"{heads[name]} heads", "1 head") for name, text in lines)


def test_a_single_head_is_one_head(regard, tmp_path):
    result = regard("show", save_run(tmp_path / "run", captioner()), "--names")
    assert result.out == "decoder.cross\t1 head\n"


def test_names_need_no_input_and_everything_else_does(regard, small_run):
    assert_refused(regard("show", small_run, "a b", "--names"), "--names lists", "leave 'a b' out")
    assert_refused(regard("show", small_run), "nothing to show; give a sentence")
