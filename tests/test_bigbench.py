# SPDX-License-Identifier: Apache-2.0
"""Questions of BIG-bench as files of lm-eval."""

import io
import json
import tarfile
from pathlib import Path

import bigbench
import models
import pytest
import yaml

EXAMPLES = [
    {"input": "How many legs?", "target_scores": {"two": 0, "four": 1}},
    {"input": "How many eyes?", "target_scores": {"two": 1.0, "four": 0.0, "six": 0.0}},
]


@pytest.fixture
def archive(tmp_path, monkeypatch):
    path = tmp_path / "bigbench.tar.gz"
    with tarfile.open(path, "w:gz") as made:
        for name, member in bigbench.TASKS.items():
            task = {"examples": EXAMPLES}
            if name == "cause_and_effect":  # whole sentences
                task |= {"example_input_prefix": "", "example_output_prefix": ""}
                task["examples"] = [{"input": "", "target_scores": {"A.": 0, "B.": 1}}]
            data = json.dumps(task).encode()
            info = tarfile.TarInfo(f"{bigbench.FOLDER}/{member}")
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    monkeypatch.setattr(models, "verify", lambda *_: None)
    return path


def test_each_task_is_a_file_and_its_questions(archive, tmp_path):
    files = bigbench.bigbench(archive, tmp_path / "cache")
    assert [path.stem for path in files] == list(bigbench.TASKS)
    archive.unlink()  # not wanted again
    assert bigbench.bigbench(archive, tmp_path / "cache") == files
    settings = yaml.safe_load(files[0].read_text())
    lines = Path(settings["dataset_kwargs"]["data_files"]).read_text().splitlines()
    assert settings["task"] == "bigbench_general_knowledge"
    assert [json.loads(line) for line in lines] == [
        {"question": "Q: How many legs?\nA:", "choices": ["two", "four"], "answer": 1},
        {"question": "Q: How many eyes?\nA:", "choices": ["two", "four", "six"], "answer": 0},
    ]
    sentences = (files[1].parent / "cause_and_effect.jsonl").read_text()
    assert json.loads(sentences) == {"question": "", "choices": ["A.", "B."], "answer": 1}


def test_another_archive_is_refused(tmp_path):
    path = tmp_path / "bigbench-1.0.0.tar.gz"
    path.write_bytes(b"no archive")
    with pytest.raises(models.DownloadError, match=r"Fetch bigbench==1\.0\.0 again"):
        bigbench.bigbench(path, tmp_path / "cache")
