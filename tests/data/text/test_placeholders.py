"""Protected spans: which parts of a text are found, and whether a translation kept them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.placeholders import drop_surplus, find_lacking, find_protected, is_kept


def found(text: str) -> list[str]:
    return [span.text for span in find_protected(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Hello {name}, you have {0} messages", ["{name}", "{0}"]),
        ("Dear {{user.name}} and ${HOME}", ["{{user.name}}", "${HOME}"]),
        ("%s has %d of %(total)d files, %1$s, %.2f", ["%s", "%d", "%(total)d", "%1$s", "%.2f"]),
        ("100% sure, 50% discount, a % sign", ["100", "50"]),
        ("See https://example.com/a?b=1&c=2. Then www.example.org!", ["https://example.com/a?b=1&c=2", "www.example.org"]),
        ("(see http://en.example.org/Foo_(bar))", ["http://en.example.org/Foo_(bar)"]),
        ("Write to jane.doe+x@mail.example.com.", ["jane.doe+x@mail.example.com"]),
        ("A <b>bold</b> word<br/> and <a href='x y'>link</a> &amp; &#39;", ["<b>", "</b>", "<br/>", "<a href='x y'>", "</a>",
                                                                            "&amp;", "&#39;"]),
        ("if a < b and c > d", []),
        ("a sentinel <extra_id_0> is the model's", []),
        ("In 2024, 3.14 or 1,000 of 12:30", ["2024", "3.14", "1,000", "12:30"]),
        ("the 1st of B2B and H2O", []),
        ("Nice 😀 👍🏽 🇮🇹 👩‍👩‍👧 ❤️ day", ["😀", "👍🏽", "🇮🇹", "👩‍👩‍👧", "❤️"]),
        ('x<y and a>b, <a href="x">, <br />, <br/>, <b > and </b >', ['<a href="x">', "<br />", "<br/>", "<b >", "</b >"]),
        ("3 + 4", []),
        ("a b c", []),
    ],
)  # fmt: skip
def test_protected_spans_are_found(text, wanted):
    assert found(text) == wanted


def test_a_number_may_be_written_as_the_language_does():
    spans = find_protected("It cost 1,000 euros in 2020, on 12 March, 5 times")
    assert is_kept(spans, "2020-03-12: 1.000 €, ५")
    assert [span.text for span in find_lacking(spans, "1.000 Euro am 12.")] == ["2020", "5"]


def test_a_repeated_span_must_be_repeated_and_not_more():
    spans = find_protected("{a} and {a}")
    assert is_kept(spans, "{a} und {a}")
    assert len(find_lacking(spans, "nur {a}")) == 1
    assert not is_kept(spans, "{a} {a} {a}")


@given(st.text(max_size=80) | st.lists(st.sampled_from(["{a}", "%s", "<b>", "</b>", "😀", "a@b.c", "5", "1,5", "word", "{", ">"]))
       .map("".join))  # fmt: skip
def test_spans_are_where_they_say_and_a_copy_keeps_them(text):
    spans = find_protected(text)
    assert all(text[span.start : span.end] == span.text and span.text for span in spans)
    assert all(first.end <= second.start for first, second in pairwise(spans))
    assert find_lacking(spans, text) == []
    assert all(span.kind == "number" for span in find_protected(drop_surplus(text)))
