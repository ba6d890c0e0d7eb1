# SPDX-License-Identifier: Apache-2.0
"""When products are told that inductor's kernels let them begin. What they gain, a GPU must say."""

from types import SimpleNamespace

import pytest

OPTION = "triton.enable_pdl"


@pytest.fixture
def begin(monkeypatch, caplog):
    """Has a model made on a GPU; gives what products are told of each of its layers."""
    from vllm.config import CompilationMode

    from flashsparse_plugin.integrations.vllm import early_begin

    told = []

    def tell(is_on):
        told.append(is_on)
        return len(told) > 1 and told[-2]

    monkeypatch.setattr(early_begin, "STATUS", {"_C_cuda": SimpleNamespace(loaded=True)})
    monkeypatch.setattr(early_begin, "ops", SimpleNamespace(begin_early=tell))
    caplog.set_level("INFO", "vllm.flashsparse")
    monkeypatch.setattr(early_begin.logger, "propagate", True)

    def made(options=(), mode="VLLM_COMPILE", backend="inductor", gpu=90, torchs=False):
        platform = SimpleNamespace(is_device_capability=lambda asked: asked == gpu)
        monkeypatch.setattr(early_begin, "current_platform", platform)
        read = SimpleNamespace() if torchs is None else SimpleNamespace(enable_pdl=torchs)
        monkeypatch.setattr(early_begin, "inductor", SimpleNamespace(triton=read))
        compilation = SimpleNamespace(
            mode=CompilationMode[mode], backend=backend, inductor_compile_config=dict(options)
        )
        config = SimpleNamespace(compilation_config=compilation)
        for _layer in range(2):
            early_begin.begin_early(config)
        assert compilation.inductor_compile_config == dict(options)  # it is the user's
        return told

    return made


def test_products_follow_the_user_and_the_log_says_so_once(begin, caplog):
    assert begin({OPTION: True}) == [True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "products use PDL: torch's inductor compiles with triton.enable_pdl"
    ]
    assert begin({OPTION: False}) == [True, True, False, False]  # another engine, same process


@pytest.mark.parametrize(
    ("options", "torchs", "is_on"),
    [({}, False, False), ({}, True, True), ({OPTION: False}, True, False), ({}, None, False)],
)
def test_where_vllms_configuration_says_nothing_torchs_counts(begin, options, torchs, is_on):
    assert begin(options, torchs=torchs) == [is_on, is_on]


@pytest.mark.parametrize(
    "elsewhere",
    [{"mode": "NONE"}, {"backend": "eager"}, {"gpu": None}, {"gpu": 89}, {"gpu": 100}],
    ids=str,
)
def test_without_inductor_or_hopper_they_do_not(begin, caplog, elsewhere):
    assert begin({OPTION: True}, torchs=True, **elsewhere) == [False, False]
    assert not caplog.records


def test_an_install_without_cuda_kernels_is_left_alone(begin, monkeypatch):
    from flashsparse_plugin.integrations.vllm import early_begin

    monkeypatch.setattr(early_begin, "STATUS", {"_C_cuda": SimpleNamespace(loaded=False)})
    assert begin({OPTION: True}) == []


def test_the_option_is_one_of_torch_and_part_of_vllms_cache_key():
    from torch._inductor import config
    from vllm.config import CompilationConfig

    with config.patch({OPTION: True}):
        assert config.triton.enable_pdl
    plain, asked = CompilationConfig(), CompilationConfig()
    asked.inductor_compile_config[OPTION] = True
    assert plain.compute_hash() != asked.compute_hash()
