# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-eval, in whose place there is a stand-in: the package is large."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from flashsparse_plugin.evaluation.tasks import require_tasks, task_scores


@pytest.fixture
def lm_eval(monkeypatch):
    """A package with one task, and what it was asked."""
    asked = {}

    def simple_evaluate(**given):
        asked.update(given)
        scores = {"alias": "arc", "acc,none": 0.25, "acc_stderr,none": 0.1, "f1,strict": 0.5}
        return {"results": {"arc_easy": scores, "own_questions": {"acc,none": 0.75}}}

    names = ("lm_eval", "lm_eval.tasks", "lm_eval.models", "lm_eval.models.huggingface")
    made = {name: ModuleType(name) for name in names}
    made["lm_eval"].__spec__ = ModuleSpec("lm_eval", None)
    made["lm_eval"].simple_evaluate = simple_evaluate

    def load(tasks):
        asked["loaded"] = tasks
        return {"tasks": {"own_questions": None}}

    manager = SimpleNamespace(all_tasks=["arc_easy"], load=load)
    made["lm_eval.tasks"].TaskManager = lambda: manager
    asked["manager"] = manager
    made["lm_eval.models.huggingface"].HFLM = lambda **given: given
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return asked


def test_scores_by_task_and_metric(lm_eval):
    found = task_scores("model", "tokenizer", ["arc_easy"], limit=7)
    assert found == {"arc_easy acc": 0.25, "arc_easy f1 (strict)": 0.5}
    assert lm_eval["limit"] == 7 and lm_eval["model"]["pretrained"] == "model"


def test_a_file_is_a_task_of_the_name_that_it_gives(lm_eval, tmp_path):
    path = str(tmp_path / "questions.yaml")
    with pytest.raises(ValueError, match=r"no task '.*questions\.yaml'"):
        require_tasks([path])
    (tmp_path / "questions.yaml").touch()
    require_tasks([path])
    assert lm_eval["loaded"] == [path]
    assert task_scores("model", "tokenizer", [path]) == {"own_questions acc": 0.75}
    assert lm_eval["tasks"] == lm_eval["loaded"] == [path]


def test_an_unknown_task_is_refused_beforehand(lm_eval):
    require_tasks(["arc_easy"])
    assert lm_eval["loaded"] == ["arc_easy"]
    with pytest.raises(ValueError, match="no task 'arc_hard'"):
        require_tasks(["arc_easy", "arc_hard"])


def test_examples_that_cannot_be_fetched_are_told_of_beforehand(lm_eval):
    def load(tasks):
        raise ConnectionError("Couldn't reach 'arc' on the Hub")

    lm_eval["manager"].load = load
    with pytest.raises(ConnectionError, match=r"arc_easy come from the Hub .* \(--text\)"):
        require_tasks(["arc_easy"])


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("flashsparse_plugin.evaluation.tasks.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install lm-eval"):
        require_tasks(["arc_easy"])
