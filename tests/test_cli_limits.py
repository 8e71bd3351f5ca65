"""What a model will not be able to do is said before it is trained."""

import pytest
from small import SMALL

from regard.cli.limits import describe_limits
from regard.config import recipes
from regard.interop.weights import describe_config
from regard.tasks import read_run


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_is_said_to_be_exportable_exactly_if_it_is(recipe):
    run = read_run(recipe)
    try:
        describe_config(run.family, run.model)
        exportable = True
    except ValueError:
        exportable = run.family == "word2vec"  # in a format of its own
    assert any("regard export will not take" in note for note in describe_limits(run)) != exportable


@pytest.mark.parametrize(
    ("recipe", "shown"),
    [("multi30k", True), ("multi30k-seq2seq", False), ("cifar10-vit", True), ("cifar10-resnet", True),
     ("cifar10-attention-cnn", True),
     ("wikitext-word2vec", False), ("wikitext-elmo", False)],
)  # fmt: skip
def test_a_model_without_attention_is_said_to_have_nothing_to_show(recipe, shown):
    assert any("nothing to show" in note for note in describe_limits(read_run(recipe))) != shown


def test_it_is_said_before_training_and_not_when_resuming(regard, tmp_path):
    few = (*SMALL, "model.positions=learned", "train.steps=1", "--out", tmp_path / "run")
    result = regard("train", "reverse", *few)
    assert result.code == 0, result.err
    notes = describe_limits(read_run("reverse", [*SMALL, "model.positions=learned"]))
    assert notes
    assert (
        result.err.index("parameters on") < result.err.index("".join(f"{note}\n" for note in notes)) < result.err.index("step 1")
    )
    assert "note:" not in regard("train", tmp_path / "run", "--resume").err
