# SPDX-License-Identifier: Apache-2.0
"""Head and sampler of decode steps in a graph: which batches are its, and what it hands on.

There is no CUDA graph on a CPU: here it is a function that writes into the tensor that it wrote
into when it was captured. Tokens on a GPU beside vLLM's own are for benchmarks/gpu/serve.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

SLOTS, HIDDEN, WORDS = 8, 4, 16
SIZES = (1, 2, 4)


class Replayed:
    """In the place of a CUDA graph."""

    def __init__(self, draw, tokens):
        self._draw, self._tokens = draw, tokens

    def replay(self):
        self._tokens.copy_(self._draw())


def uva(value, dtype):
    """In the place of vLLM's tensor that lives on both sides."""
    array = np.full(SLOTS, value, dtype)
    return SimpleNamespace(np=array, gpu=torch.from_numpy(array))


@pytest.fixture
def sampler():
    return SimpleNamespace(
        compute_nans=False,
        use_fp64_gumbel=False,
        returns_logprobs=lambda slots: bool((sampler_logprobs[slots] >= 0).any()),
        sampling_states=SimpleNamespace(
            vocab_size=WORDS,
            temperature=uva(0, np.float32),
            seeds=uva(0, np.int64),
            top_k=uva(WORDS, np.int32),
            top_p=uva(1, np.float32),
            min_p=uva(0, np.float32),
        ),
        penalties_state=SimpleNamespace(use_penalty=np.zeros(SLOTS, bool)),
        logit_bias_state=SimpleNamespace(use_logit_bias=np.zeros(SLOTS, bool)),
        bad_words_state=SimpleNamespace(num_bad_words=uva(0, np.int32)),
    )


sampler_logprobs = np.full(SLOTS, -1)


@pytest.fixture(autouse=True)
def no_logprobs():
    sampler_logprobs[:] = -1


@pytest.fixture
def runner(sampler, monkeypatch):
    from vllm.config import CUDAGraphMode

    from flashsparse_plugin.integrations.vllm import decode_sampling

    def described(size, mode=CUDAGraphMode.FULL, uniform=1):
        return SimpleNamespace(num_tokens=size, cg_mode=mode, uniform_token_count=uniform)

    graphs = [described(size) for size in SIZES]
    graphs += [described(8, uniform=2), described(8, CUDAGraphMode.PIECEWISE, None)]
    head = torch.randn(WORDS, HIDDEN, generator=torch.Generator().manual_seed(0))
    parallel = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1)
    made = SimpleNamespace(
        sampler=sampler,
        max_num_reqs=SLOTS,
        speculator=None,
        lora_config=None,
        num_speculative_steps=0,
        vllm_config=SimpleNamespace(parallel_config=parallel),
        cudagraph_manager=SimpleNamespace(hidden_states=torch.zeros(8, HIDDEN), graphs=graphs),
        model=SimpleNamespace(compute_logits=lambda hidden: hidden @ head.T),
        sample=lambda *batch: "vLLM's",
        add_requests=lambda output: made.added.append(output),
        added=[],
    )

    def draw(self, size):  # a token that tells the slot's temperature and seed
        logits = made.model.compute_logits(self._hidden[:size])
        slots = self._slots[:size].long()
        return logits.argmax(-1) + (100 * self._temperature[slots]).long() + self._seeds[slots]

    def capture(self, size):
        tokens = self._draw(size)
        return Replayed(lambda: self._draw(size), tokens), tokens

    monkeypatch.setattr(decode_sampling.GraphSampler, "_draw", draw)
    monkeypatch.setattr(decode_sampling.GraphSampler, "_capture", capture)
    assert decode_sampling.can_sample(made)
    made.graphs = decode_sampling.GraphSampler(made)
    made.graphs.install()
    return made


def batch(*slots, tokens=None, drafts=0, prefilling=False):
    return SimpleNamespace(
        num_reqs=len(slots),
        num_tokens=len(slots) if tokens is None else tokens,
        num_draft_tokens=drafts,
        is_prefilling_np=np.full(len(slots), prefilling),
        idx_mapping=torch.tensor(slots, dtype=torch.int32),
        idx_mapping_np=np.array(slots, np.int32),
    )


def arrive(runner, **states):
    """A new request; `states` are those of all slots after it."""
    for name, values in states.items():
        getattr(runner.sampler.sampling_states, name).np[:] = values
    runner.add_requests(SimpleNamespace(scheduled_new_reqs=["one"]))


def step(runner, size, *slots, grammar=None, **about):
    hidden = runner.cudagraph_manager.hidden_states
    hidden.copy_(torch.randn(hidden.shape, generator=torch.Generator().manual_seed(len(slots))))
    return sample(runner, hidden[:size], batch(*slots, **about), grammar)


@torch.inference_mode()
def sample(runner, hidden, batch, grammar=None):
    return runner.sample(hidden, batch, grammar)


def test_graphs_are_those_of_batches_with_a_token_for_each_request(runner):
    assert set(runner.graphs._graphs) == set(SIZES)


def test_tokens_are_of_the_slots_of_the_batch(runner):
    arrive(runner, temperature=np.arange(SLOTS) / 10, seeds=1000 * np.arange(SLOTS))
    output, drawn, rejected = step(runner, 4, 5, 0, 2)
    logits = runner.model.compute_logits(runner.cudagraph_manager.hidden_states[:3])
    expected = logits.argmax(-1) + torch.tensor([5050, 0, 2020])
    assert output.sampled_token_ids.tolist() == expected.view(-1, 1).tolist()
    assert (drawn.tolist(), rejected.tolist()) == ([1, 1, 1], [0, 0, 0])
    assert drawn.dtype == rejected.dtype == torch.int32
    assert output.num_sampled is drawn and output.num_rejected is rejected
    assert output.logprobs_tensors is None


def test_tokens_outlive_the_next_replay(runner):
    first, *_ = step(runner, 1, 0)
    kept = first.sampled_token_ids.clone()
    runner.cudagraph_manager.hidden_states.neg_()
    sample(runner, runner.cudagraph_manager.hidden_states[:1], batch(0))
    assert torch.equal(first.sampled_token_ids, kept)


@pytest.mark.parametrize(
    ("size", "slots", "about"),
    [
        (2, (0, 1), {"grammar": "mask"}),
        (2, (0, 1), {"tokens": 5}),
        (2, (0, 1), {"drafts": 1}),
        (2, (0, 1), {"prefilling": True}),
        (3, (0, 1, 2), {}),  # no graph of this size
    ],
)
def test_other_batches_are_vllms(runner, size, slots, about):
    assert step(runner, size, *slots, **about) == "vLLM's"


def test_hidden_states_that_no_graph_wrote_are_vllms(runner):
    assert sample(runner, torch.zeros(2, HIDDEN), batch(0, 1)) == "vLLM's"


def _flags(runner):
    states = runner.sampler.sampling_states
    return {
        "logprobs": (sampler_logprobs, 1),
        "top_k": (states.top_k.np, 3),
        "top_p": (states.top_p.np, 0.9),
        "min_p": (states.min_p.np, 0.1),
        "penalty": (runner.sampler.penalties_state.use_penalty, True),
        "bias": (runner.sampler.logit_bias_state.use_logit_bias, True),
        "bad words": (runner.sampler.bad_words_state.num_bad_words.np, 2),
    }


@pytest.mark.parametrize(
    "name", ["logprobs", "top_k", "top_p", "min_p", "penalty", "bias", "bad words"]
)
def test_one_request_that_asks_for_more_makes_the_batch_vllms(runner, name):
    assert step(runner, 2, 0, 1) != "vLLM's"
    array, value = _flags(runner)[name]
    array[1] = value
    arrive(runner)
    assert step(runner, 2, 0, 1) == "vLLM's"
    assert step(runner, 1, 0) != "vLLM's"  # without that request


def test_the_state_is_copied_when_a_request_arrives_and_not_in_every_step(runner):
    runner.add_requests(SimpleNamespace(scheduled_new_reqs=[]))
    assert runner.added == []
    arrive(runner, temperature=0.5)
    assert len(runner.added) == 1
    assert (runner.graphs._temperature == 0.5).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda runner: setattr(runner.vllm_config.parallel_config, "tensor_parallel_size", 2),
        lambda runner: setattr(runner.vllm_config.parallel_config, "pipeline_parallel_size", 2),
        lambda runner: setattr(runner, "speculator", "eagle"),
        lambda runner: setattr(runner, "num_speculative_steps", 1),
        lambda runner: setattr(runner, "lora_config", "some"),
        lambda runner: setattr(runner.sampler, "compute_nans", True),
        lambda runner: setattr(runner, "sampler", None),
        lambda runner: setattr(runner.cudagraph_manager, "hidden_states", None),
    ],
)
def test_runners_that_it_does_not_know_keep_vllms(runner, change):
    from flashsparse_plugin.integrations.vllm.decode_sampling import can_sample

    change(runner)
    assert not can_sample(runner)


@pytest.mark.parametrize(
    ("quantization", "setting", "wanted"),
    [
        ("flashsparse", {}, True),
        ("flashsparse", {"decode_sampling": "graph"}, True),
        ("flashsparse", {"decode_sampling": "default"}, False),
        ("fp8", {}, False),
        (None, {}, False),
    ],
)
def test_packed_models_have_it_unless_the_setting_says_otherwise(quantization, setting, wanted):
    from flashsparse_plugin.integrations.vllm.decode_sampling import is_wanted

    config = SimpleNamespace(
        model_config=SimpleNamespace(quantization=quantization),
        additional_config={"flashsparse": setting},
    )
    assert is_wanted(config) == wanted


def test_a_setting_that_there_is_not_is_refused():
    from flashsparse_plugin.integrations.vllm.settings import SettingsError, settings_of

    with pytest.raises(SettingsError, match='"decode_sampling"] must be "graph" or "default"'):
        settings_of({"flashsparse": {"decode_sampling": "fast"}})
