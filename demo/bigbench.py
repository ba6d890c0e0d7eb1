# SPDX-License-Identifier: Apache-2.0
"""Questions of BIG-bench as tasks of lm-eval that lie on the disk, for a machine without the Hub.

    pip download --no-deps --no-binary bigbench bigbench==1.0.0
    python demo/bigbench.py bigbench-1.0.0.tar.gz

pip fetches 358 MB, and runs the package's setup.py to learn its version. Only the files of
questions are taken from the archive, into build/cache/bigbench: for each of TASKS a file that
lm-eval reads and one with the questions. `flashsparse eval --tasks` takes the former by its path.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import models
import yaml

# BIG-bench (Srivastava et al., 2022, arXiv 2206.04615), Apache-2.0.
SHA256 = "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2"
FOLDER = "bigbench-1.0.0/bigbench/benchmark_tasks"
TASKS = {
    "general_knowledge": "general_knowledge/task.json",
    "cause_and_effect": "cause_and_effect/one_sentence_no_prompt/task.json",
    "physical_intuition": "physical_intuition/task.json",
    "phrase_relatedness": "phrase_relatedness/task.json",
}


def bigbench(archive: Path, cache: Path = models.CACHE) -> list[Path]:
    """Makes the tasks, unless they are there, and returns their files.

    Args:
        archive: The source archive of the package.
        cache: Directory to keep them in, as bigbench/<name>.yaml and bigbench/<name>.jsonl.

    Raises:
        DownloadError: If the archive is not that of the version which is known.
    """
    target = Path(cache) / "bigbench"
    if not target.exists():
        models.verify(archive, SHA256, "Fetch bigbench==1.0.0 again.")
        with models.workspace(cache) as work, tarfile.open(archive) as opened:
            made = work / target.name
            made.mkdir()
            for name, member in TASKS.items():
                opened.extract(f"{FOLDER}/{member}", work, filter="data")
                write(name, json.loads((work / FOLDER / member).read_text()), made, target)
            models.publish(made, target)
    return [target / f"{name}.yaml" for name in TASKS]


def write(name: str, task: dict[str, Any], folder: Path, target: Path) -> None:
    """Writes a task of multiple choices, which will lie in `target`.

    The model is not shown the choices: that counts whose continuation of the question is the
    likeliest, as in lm-eval's own tasks of such questions (`acc_norm`: by its length).
    """
    lines = []
    for example in task["examples"]:
        choices, scores = zip(*example["target_scores"].items(), strict=True)
        before, after = task.get("example_input_prefix"), task.get("example_output_prefix")
        before, after = ("Q: " if before is None else before), ("\nA:" if after is None else after)
        question = (before + example["input"] + after).strip()
        line = {"question": question, "choices": choices, "answer": scores.index(max(scores))}
        lines.append(json.dumps(line))
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    settings = {
        "task": f"bigbench_{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": str(target.absolute() / f"{name}.jsonl")},
        "test_split": "train",  # the only one that a file has
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("acc", "acc_norm")
        ],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="bigbench-1.0.0.tar.gz")
    for path in bigbench(parser.parse_args().archive):
        print(path)


if __name__ == "__main__":
    main()
