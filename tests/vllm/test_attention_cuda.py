# SPDX-License-Identifier: Apache-2.0
"""The attention backend CUSTOM for CUDA, as far as it goes without a GPU: its own branch runs on
CPU tensors, FlashAttention's is a stand-in. On a GPU benchmarks/gpu/serve.py compares the two."""

import inspect
import logging
from types import SimpleNamespace

import pytest
import torch

from flashsparse_plugin.attention import (
    CalibrationError,
    Counter,
    UnifiedMax,
    counters,
    published,
)
from flashsparse_plugin.attention.counters import logger as counting
from flashsparse_plugin.ops import attention_reference

HEADS, KV_HEADS, DIM, BLOCK, WINDOW, SOFTCAP = 4, 2, 64, 16, 24, 3.0
ELSEWHERE = "FlashAttention was asked"


@pytest.fixture(scope="module")
def backend():
    """The module under test. Importing vLLM takes seconds, and it may be absent: not at the top."""
    from flashsparse_plugin.integrations.vllm import attention_cuda

    return attention_cuda


@pytest.fixture
def impl(backend, monkeypatch):
    """One layer's implementation, made as vLLM makes it."""
    flash = backend.FlashAttentionImpl
    monkeypatch.setattr(flash, "forward", lambda *args, **kwargs: ELSEWHERE)
    arguments = (HEADS, DIM, DIM**-0.5, KV_HEADS, None, WINDOW, "auto", SOFTCAP)
    return backend.CUDAImpl(*arguments)


def give_decoder(impl, device="cpu", phi=None):
    from flashsparse_plugin.integrations.vllm.attention_layers import Decoder

    impl.decoder = Decoder(impl, impl.window(), phi, Counter("layer", torch.device(device)))


def metadata(lengths, table, **changes):
    """Of a batch of one token a sequence, in the class of this release of vLLM."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadata

    fields = {
        "num_actual_tokens": len(lengths),
        "max_query_len": 1,
        "query_start_loc": torch.arange(len(lengths) + 1, dtype=torch.int32),
        "max_seq_len": 60,
        "seq_lens": lengths,
        "block_table": table,
        "slot_mapping": None,
    }
    # 0.26 has cascade attention, and no defaults for it.
    cascade = ["cu_prefix_query_lens", "prefix_kv_lens", "suffix_kv_lens"]
    older = {"use_cascade": False, "common_prefix_len": 0} | dict.fromkeys(cascade)
    known = inspect.signature(FlashAttentionMetadata).parameters
    fields |= {name: value for name, value in older.items() if name in known}
    made = FlashAttentionMetadata(**fields)
    vars(made).update(changes)
    return made


def inputs(layout="NHD", device="cpu"):
    """A cache as vLLM allocates it in either layout, and a query that is a part of a fused one."""
    generator = torch.Generator().manual_seed(0)
    shape = [9, BLOCK, KV_HEADS] if layout == "NHD" else [9, KV_HEADS, BLOCK]
    cache = torch.randn([*shape, 2 * DIM], generator=generator).bfloat16()
    cache = cache.transpose(1, 2) if layout == "NHD" else cache
    fused = torch.randn(6, (HEADS + 2 * KV_HEADS) * DIM, generator=generator).bfloat16()
    query = fused[:, : HEADS * DIM].view(6, HEADS, DIM)
    # The last sequence fills up a graph; beyond it are rows that belong to nobody.
    lengths = torch.tensor([1, 37, 16, 60, 0], dtype=torch.int32)
    table = torch.tensor(
        [[3, 0, 0, 0], [8, 1, 5, 0], [7, 0, 0, 0], [2, 4, 6, 1], [0, 0, 0, 0]], dtype=torch.int32
    )
    return (t.to(device) for t in (cache, query, lengths, table))


def forward(impl, cache, query, batch):
    output = torch.full_like(query, 7.0)
    given = impl.forward(None, query, None, None, cache, batch, output)
    return output if given is output else given


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_decode_batches_are_ours(impl, layout):
    impl.sinks = torch.linspace(-2, 2, HEADS).bfloat16() if layout == "HND" else None
    give_decoder(impl)
    cache, query, lengths, table = inputs(layout)
    out = forward(impl, cache, query, metadata(lengths, table))
    pages = cache[table.long()].float()  # [sequences, blocks, kv_heads, positions, both]
    key, value = pages.transpose(1, 2).flatten(2, 3).split(DIM, dim=-1)
    options = {"scale": DIM**-0.5, "softcap": SOFTCAP, "window": WINDOW, "sinks": impl.sinks}
    expected = attention_reference.decode(query[:5].float(), key, value, lengths, **options)
    torch.testing.assert_close(out[:5].double(), expected, atol=1e-2, rtol=1e-2)
    assert out[4].abs().max() == 0  # a sequence that only fills up
    assert (out[5] == 7).all()  # not ours to write
    assert counters()["layer"] == (0, 5 * HEADS)


@pytest.mark.parametrize("heads", [1, KV_HEADS])
def test_an_fp8_cache_has_scales(impl, heads):
    """Per tensor or per head; a query that vLLM rounded has a scale, too."""
    impl.kv_cache_dtype = "fp8"
    give_decoder(impl)
    cache, query, lengths, table = inputs()
    codes = (cache / 0.25).to(torch.float8_e4m3fn)
    rounded = (query / 0.5).to(torch.float8_e4m3fn)
    scales = {name: torch.full((heads,), 0.25) for name in ("key_scale", "value_scale")}
    layer = SimpleNamespace(
        _k_scale=scales["key_scale"], _v_scale=scales["value_scale"], _q_scale=torch.tensor(0.5)
    )
    pages = codes.view(torch.uint8)[table.long()].transpose(1, 2).flatten(2, 3)
    key, value = pages.view(torch.float8_e4m3fn).float().split(DIM, dim=-1)
    options = {"scale": DIM**-0.5, "softcap": SOFTCAP, "window": WINDOW} | scales
    for given, exact in ((query, query.float()), (rounded, rounded.float() / 2)):
        out = torch.full_like(query, 7.0)
        batch = metadata(lengths, table)
        impl.forward(layer, given, None, None, codes.view(torch.uint8), batch, out)
        expected = attention_reference.decode(exact[:5], key, value, lengths, **options)
        torch.testing.assert_close(out[:5].double(), expected, atol=1e-2, rtol=1e-2)
    stored = SimpleNamespace(head_size_v=DIM, kv_cache_torch_dtype=torch.uint8)
    assert impl.reason_against(stored, torch.bfloat16) is None


def test_all_other_batches_are_flash_attentions(impl):
    cache, query, lengths, table = inputs()
    assert forward(impl, cache, query, metadata(lengths, table)) == ELSEWHERE  # no decoder
    give_decoder(impl)
    for changes in (
        {"max_query_len": 2},
        {"num_actual_tokens": 6},  # a sequence has two
        {"causal": False},
        {"causal": torch.ones(5, dtype=torch.int32)},
        {"use_cascade": True},
        {"rswa_prefix_lens": lengths},
    ):
        batch = metadata(lengths, table, **changes)
        assert forward(impl, cache, query, batch) == ELSEWHERE, changes
    assert forward(impl, cache, query, None) == ELSEWHERE  # vLLM measures memory
    given = impl.forward(
        None, query, None, None, cache, metadata(lengths, table), query, output_scale=lengths
    )
    assert given == ELSEWHERE


def test_nothing_waits_for_the_device(impl):
    """Or a CUDA graph could not be captured: tensors on "meta" have nothing that could be read."""
    give_decoder(impl, device="meta", phi=torch.zeros(HEADS, device="meta"))
    cache, query, lengths, table = inputs(device="meta")
    assert forward(impl, cache, query, metadata(lengths, table)).device.type == "meta"


def test_graphs_of_mixed_batches_are_ruled_out(backend):
    """They would be replayed for decode batches with FlashAttention in them, or the reverse."""
    support = backend.CUDABuilder.get_cudagraph_support(None, None)
    assert support == backend.AttentionCGSupport.UNIFORM_BATCH
    assert support.value < backend.AttentionCGSupport.ALWAYS.value


def test_vllm_refuses_what_it_cannot_do(backend):
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.selector import AttentionSelectorConfig

    def reasons(capability=(9, 0), **changes):
        fields = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto"} | changes
        config = AttentionSelectorConfig(**fields, **({} if "block_size" in changes else block))
        return backend.CUDABackend.validate_configuration(
            device_capability=DeviceCapability(*capability), **config._asdict()
        )

    block = {"block_size": None}
    assert reasons() == reasons(has_sliding_window=True, dtype=torch.float16) == []
    assert reasons(head_size=192) == ["head_size not supported"]
    assert reasons(dtype=torch.float32) == ["dtype not supported"]
    assert "kv_cache_dtype not supported" in reasons(kv_cache_dtype="fp8_e5m2")
    assert "MLA not supported" in reasons(use_mla=True)
    assert "batch invariance not supported" in reasons(use_batch_invariant=True)
    assert reasons(capability=(7, 5)) == ["compute capability not supported"]
    assert backend.CUDABackend.get_name() == "CUSTOM"


def test_a_layer_that_is_none_for_the_kernel_says_why(impl):
    layer = SimpleNamespace(head_size_v=DIM, kv_cache_torch_dtype=torch.bfloat16)
    assert impl.reason_against(layer, torch.bfloat16) is None
    assert "a cache of torch.bfloat16" in impl.reason_against(layer, torch.float16)
    for name, value, word in (
        ("alibi_slopes", [1.0], "ALiBi"),
        ("sinks", torch.zeros(HEADS).half(), "sinks of torch.float16"),
        ("attn_type", "encoder_decoder", "encoder_decoder"),
        ("head_size", 192, "192"),
        ("dcp_world_size", 2, "context parallelism"),
    ):
        before = getattr(impl, name, 1)
        setattr(impl, name, value)
        assert word in impl.reason_against(layer, torch.bfloat16)
        setattr(impl, name, before)


def test_each_rank_has_phi_of_its_own_heads():
    from flashsparse_plugin.integrations.vllm.attention_layers import phi_of

    layer = {"phi": [0.0, 1.0, 2.0, 3.0], "a": -1.0, "b": 1.0, "recomputed": 0.0}
    entry = UnifiedMax(dtype="bfloat16", layers=[None, layer])
    name = "model.layers.1.self_attn.attn"
    assert phi_of(entry, name, 4, 0, 1) == [0.0, 1.0, 2.0, 3.0]
    assert phi_of(entry, name, 2, 1, 2) == [2.0, 3.0]
    assert phi_of(entry, name, 1, 2, 4) == [2.0]
    assert phi_of(entry, "model.layers.0.self_attn.attn", 4, 0, 1) is None  # spread too widely
    assert phi_of(entry, "model.layers.2.self_attn.attn", 4, 0, 1) is None  # of a draft model
    assert phi_of(entry, "draft.layers.1.attn", 8, 0, 1) is None
    assert phi_of(entry, "model.attn", 4, 0, 1) is phi_of(None, name, 4, 0, 1) is None


def test_an_entry_for_a_dtype_with_more_room_is_left_alone(backend, monkeypatch):
    from flashsparse_plugin.integrations.vllm import attention

    attention.install()
    layer = {"phi": [0.0] * HEADS, "a": -1.0, "b": 1.0, "recomputed": 0.0}
    text = SimpleNamespace(
        unified_max={"dtype": "bfloat16", "layers": [layer]},
        num_hidden_layers=1,
        num_attention_heads=HEADS,
    )
    config = SimpleNamespace(
        attention_config=SimpleNamespace(backend=attention.custom_backend()),
        model_config=SimpleNamespace(hf_text_config=text, dtype=torch.float16),
    )
    said = []
    monkeypatch.setattr(attention.logger, "warning", lambda text, *args: said.append(text % args))
    attention.check_calibration(config)
    config.model_config.dtype = torch.bfloat16  # what it was made for
    attention.check_calibration(config)
    (warning,) = said
    assert "chosen for bfloat16 and does not fit float16" in warning
    text.num_hidden_layers = 2
    with pytest.raises(CalibrationError, match="has 1 layers, and the model has 2"):
        attention.check_calibration(config)
    config.attention_config.backend = None
    attention.check_calibration(config)  # vLLM's own attention asks for no phi


def test_counts_are_told_at_debug_level_only(caplog, monkeypatch, tmp_path):
    """In the log, and to `flashsparse doctor`."""
    from flashsparse_plugin.integrations.vllm.attention_layers import log_counts

    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path))

    first, second = (Counter(name, torch.device("cpu")) for name in ("first", "second"))
    first.add(torch.tensor([[1, 0]]))
    second.add(torch.tensor([[2, 3]]))
    log_counts(["first", "second"])
    assert caplog.records == [] and published() == []
    with caplog.at_level(logging.DEBUG, counting.name):
        log_counts(["first", "second", "third"])
    (record,) = caplog.records
    assert record.getMessage() == (
        "decode attention of 2 layers: 6 parts of a softmax recomputed, for 4 sequences x "
        "heads; most in second, 5 for 2"
    )
    (process,) = published()
    assert process["layers"] == {"first": [1, 2], "second": [5, 2]}
    monkeypatch.setenv("FLASHSPARSE_CACHE", __file__)  # no folder: told, and nothing stops
    caplog.clear()
    with caplog.at_level(logging.DEBUG, counting.name):
        log_counts(["first"])
    assert "could not be published for `flashsparse doctor`" in caplog.records[-1].getMessage()
