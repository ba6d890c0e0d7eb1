# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-eval, an optional package (the extra `eval`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def is_file(task: str) -> bool:
    """Whether a task is a file of the user's own, in lm-eval's format, and no name."""
    return task.endswith(".yaml") and Path(task).is_file()


def require_tasks(tasks: Sequence[str]) -> None:
    """Raises, before any work starts, where tasks cannot be run.

    Raises:
        ImportError: Where lm-eval is not installed.
        ValueError: For a task that it does not know and that is no file.
        ConnectionError: Where the examples of a task can neither be fetched nor are in the cache.
    """
    if util.find_spec("lm_eval") is None:
        raise ImportError("--tasks needs lm-eval: pip install lm-eval")
    from lm_eval.tasks import TaskManager

    known = TaskManager()
    for task in tasks:
        if task not in known.all_tasks and not is_file(task):
            raise ValueError(
                f"lm-eval has no task {task!r}: `lm-eval ls tasks` lists them, and the path of a "
                ".yaml file is one of your own"
            )
    try:
        known.load(list(tasks))
    except ConnectionError as error:
        raise ConnectionError(
            f"the examples of {', '.join(tasks)} come from the Hub when a task is run first, and "
            f"then from its cache: {error}. Run it once with a network, or measure perplexity "
            "(--text), which needs none"
        ) from None


def task_scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    limit: int | None = None,
) -> dict[str, float]:
    """Scores of a model in some tasks, "task metric" to number.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        tasks: Names that lm-eval knows, and paths of files, which `is_file` tells apart.
        limit: Examples a task; None for all.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    result = simple_evaluate(
        model=wrapped, tasks=list(tasks), limit=limit, bootstrap_iters=0, log_samples=False
    )
    scores = {}
    files = [task for task in tasks if is_file(task)]
    own = TaskManager().load(files)["tasks"] if files else ()  # by the names that they give
    for task in (*(task for task in tasks if task not in files), *own):
        for metric, value in result["results"].get(task, {}).items():
            name, _, kind = metric.partition(",")
            if isinstance(value, (int, float)) and "stderr" not in name and kind:
                shown = name if kind == "none" else f"{name} ({kind})"
                scores[f"{task} {shown}"] = float(value)
    return scores
