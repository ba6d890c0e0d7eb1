# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from huggingface_hub import constants
from tiny_causal_lms import character_tokenizer, tiny_model

from flashsparse_plugin.cli import console

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A tiny random Llama with a tokenizer and a chat template, in bfloat16."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("llama-tied", torch.bfloat16).save_pretrained(path)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)
    (path / "LICENSE").write_text("free")
    return path


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The fox saw a lantern in the snow, and the snow saw the fox. " * 20)
    return path


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing is asked of the Hub but by tests that bring a Hub of their own."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """No message is wrapped, so that a test can look for it.

    A console that was made while COLUMNS was set, as xdist sets it, keeps that width.
    """
    monkeypatch.setenv("COLUMNS", "400")
    for each in (console.out, console.err):
        monkeypatch.setattr(each, "_width", None)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny models are quicker without the barriers between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
