"""Mutations of decoding: the cache, the searches, the end of an output; and of the model's cost."""

from typing import Any

import pytest
from mutation import Mutation, replace_everywhere
from mutations_transformer import forget_tokens
from torch import Tensor

from regard.decode import fast, search
from regard.layers.block import EncoderBlock
from regard.models import transformer
from regard.models.transformer import Transformer
from regard.tasks.translation import Translator


def encode_at_each_step(patch: pytest.MonkeyPatch) -> None:
    def again(model: Transformer, source: Tensor) -> fast.DecoderState:
        model.encode(source)  # as if the first step had not kept it
        return fast.read_memory(model, *model.encode(source))

    replace_everywhere(patch, fast._read_source, again)


def end_one_token_late(patch: pytest.MonkeyPatch) -> None:
    generate = search._generate

    def longer(model: Any, source: Any, limits: Tensor, choose: Any, bos: Any, eos: int, *rest: Any) -> list[search.Hypothesis]:
        return generate(model, source, limits + 1, choose, bos, -1, *rest)

    patch.setattr(search, "_generate", longer)


def forget_scores(patch: pytest.MonkeyPatch) -> None:
    extend = search._extend

    def of_last_tokens(offset: Tensor, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        return extend(offset.masked_fill(offset.isfinite(), 0.0), logits, count)

    patch.setattr(search, "_extend", of_last_tokens)


def narrow_beams(patch: pytest.MonkeyPatch) -> None:
    search_beams = search.beam

    def narrow(*args: Any, width: int, **options: Any) -> list[list[search.Hypothesis]]:
        return search_beams(*args, width=1, **options)

    patch.setattr(search, "beam", narrow)


def search_greedily(patch: pytest.MonkeyPatch) -> None:
    answer = Translator.search
    patch.setattr(Translator, "search", lambda self, sources, **options: answer(self, sources, **{**options, "beam": 1}))


def skip_the_mlps(patch: pytest.MonkeyPatch) -> None:
    def forward(self: EncoderBlock, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return self.attn_residual(x, lambda h: self.attn(h, mask=mask, bias=bias, causal=self.causal))

    patch.setattr(EncoderBlock, "forward", forward)


def shrink_the_base_model(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(transformer.SIZES, "base", transformer.SIZES["tiny"])


MUTATIONS = [
    Mutation("a decoding step forgets the token it read", forget_tokens,
             ("i_love_you_very_much_is_translated_word_by_word", "a_step_with_a_cache_gives_the_logits_of_the_last_position",
              "beam_search_keeps_the_most_probable_sequences")),
    Mutation("the encoder runs twice", encode_at_each_step, ("encoder_runs_once_for_all_steps",)),
    Mutation("no token ends an output, and the limit is one later", end_one_token_late,
             ("generation_ends_at_the_end_token_or_at_the_limit", "i_love_you_very_much_is_translated_word_by_word")),
    Mutation("beam search compares only the last tokens", forget_scores,
             ("beam_search_keeps_the_most_probable_sequences", "wider_beams_find_more_probable_sentences")),
    Mutation("a beam has one sequence", narrow_beams,
             ("beam_search_keeps_the_most_probable_sequences", "wider_beams_find_more_probable_sentences")),
    Mutation("a translator always searches greedily", search_greedily, ("beams_translate_better_than_greedy_search",), slow=True),
    Mutation("the base model has the size of the tiny one", shrink_the_base_model, ("training_cost_is_the_time_of_the_gpus",)),
]  # fmt: skip
