"""The recipes for own data make models that transformers can read."""

import pytest

from regard.config import recipes
from regard.interop.weights import describe_config
from regard.tasks import read_run


@pytest.mark.parametrize(
    ("recipe", "model_type"),
    [("translate", "pegasus"), ("gpt", "gpt2"), ("classify", "bert"), ("images", "resnet"), ("multi30k", "marian")],
)
def test_the_model_of_a_recipe_can_be_exported(recipe, model_type):
    run = read_run(recipes()[recipe])
    assert describe_config(run.family, run.model)["model_type"] == model_type
