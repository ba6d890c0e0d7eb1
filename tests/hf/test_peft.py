# SPDX-License-Identifier: Apache-2.0
"""LoRA on packed layers: what get_peft_model does with nn.Linear it does with SparseLinear."""

import pytest
import tiny
import torch
from peft import (
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    OSFConfig,
    PeftModel,
    VeraConfig,
    get_peft_model,
)
from peft.tuners.lora import LoraLayer
from transformers.trainer_utils import validate_quantization_for_training

import flashsparse_plugin as fs
from flashsparse_plugin.integrations.hf import peft as integration
from flashsparse_plugin.integrations.hf.peft import SparseLoraLinear

pytestmark = pytest.mark.oldest_transformers

TARGETS = ["q_proj", "v_proj", "up_proj", "down_proj"]
LAYERS = 2 * len(TARGETS)


def adapted(llama, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    model = tiny.load(llama.packed, dtype)
    return get_peft_model(model, LoraConfig(r=4, target_modules=TARGETS, **settings))


def train(model, steps=3):
    ids = tiny.prompt()["input_ids"]
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.05)
    losses = []
    for _ in range(steps + 1):
        loss = model(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_reduces_the_loss_and_leaves_the_weight(dtype, llama):
    model = adapted(llama, dtype)
    wrapped = [m for m in model.modules() if isinstance(m, SparseLoraLinear)]
    assert len(wrapped) == LAYERS
    # As with any 16-bit base, peft keeps the adapters in float32.
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    before = {key: value.clone() for key, value in tiny.packed_tensors(model).items()}
    validate_quantization_for_training(model)
    losses = train(model)
    assert losses[-1] < losses[0]
    after = tiny.packed_tensors(model)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_gradients_are_those_of_the_dense_model(llama):
    """As close to those in float64 as the masked dense model's in float32 are."""
    ids = tiny.prompt()["input_ids"]
    config = LoraConfig(r=4, target_modules=TARGETS)
    gradients = []
    for path, dtype in (
        (llama.masked, torch.float64),
        (llama.masked, torch.float32),
        (llama.packed, torch.float32),
    ):
        torch.manual_seed(0)
        model = get_peft_model(tiny.load(path, dtype), config)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape))
        model(input_ids=ids, labels=ids).loss.backward()
        grads = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
        assert len(grads) == 2 * LAYERS
        gradients.append(torch.cat(grads))
    exact, dense, packed = gradients
    assert 0 < (dense - exact).norm() < 1e-3 * exact.norm()
    assert (packed - exact).norm() <= 8 * (dense - exact).norm()


def test_the_trainer_refuses_a_packed_model_without_adapters(llama):
    with pytest.raises(ValueError, match="purely quantized"):
        validate_quantization_for_training(tiny.load(llama.packed))


def test_adapters_are_saved_and_loaded_beside_the_packed_weight(llama, tmp_path):
    model = adapted(llama)
    train(model)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.load(llama.packed), tmp_path)
    assert torch.equal(tiny.logits(again), tiny.logits(model.eval()))
    # And by transformers' own loader of adapters.
    own = tiny.load(llama.packed)
    own.load_adapter(str(tmp_path))
    assert torch.equal(tiny.logits(own), tiny.logits(model))


def test_merging_is_refused_and_right_on_the_dense_model(llama, tmp_path):
    model = adapted(llama)
    train(model)
    model.eval()
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="cannot be merged.*dequantize"):
            merge()
    model.save_pretrained(tmp_path)
    dense = PeftModel.from_pretrained(tiny.load(llama.packed).dequantize(), tmp_path)
    merged = dense.merge_and_unload()
    torch.testing.assert_close(tiny.logits(merged), tiny.logits(model), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        dict(use_dora=True),
        dict(use_rslora=True, bias="all"),
        dict(modules_to_save=["lm_head"]),
        dict(mixed=True),
    ],
    ids=lambda settings: next(iter(settings), "lora"),
)
def test_a_refused_merge_changes_nothing(settings, llama):
    """Also where dense layers, which could be merged, come before the packed ones."""
    settings = dict(settings)
    wrapping = {"mixed": True} if settings.pop("mixed", False) else {}
    torch.manual_seed(0)
    packing = fs.FlashSparseConfig(ignore=["lm_head", "re:.*layers\\.0\\..*"])
    base = tiny.load(llama.masked, quantization_config=packing)
    plain = tiny.logits(base)
    config = LoraConfig(r=4, target_modules=TARGETS, **settings)
    model = get_peft_model(base, config, **wrapping)
    adapters = [m for m in model.modules() if isinstance(m, LoraLayer)]
    assert [isinstance(m, SparseLoraLinear) for m in adapters] == 4 * [False] + 4 * [True]
    train(model)
    model.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    adapted = tiny.logits(model)
    assert (adapted - plain).abs().max() > 1e-3
    refused = r"layer 'model\.layers\.1\.\S+' and 3 more.*dequantize"
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match=refused):
            merge()
        after = model.state_dict()
        assert after.keys() == state.keys()
        assert all(torch.equal(after[key], value) for key, value in state.items())
        assert torch.equal(tiny.logits(model), adapted)
        assert not any(m.merged or m.disable_adapters for m in adapters)
    bare = model.unload().eval()
    if "bias" not in settings and "modules_to_save" not in settings:
        assert torch.equal(tiny.logits(bare), plain)


def test_unloading_gives_the_packed_model_back(llama, wanted):
    model = adapted(llama)
    train(model)
    assert torch.equal(tiny.generate(model.unload().eval()), wanted)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_initialisations_that_rewrite_the_weight_are_refused(init, llama):
    with pytest.raises(ValueError, match="rewrites the base weight"):
        adapted(llama, init_lora_weights=init)


@pytest.mark.parametrize("kind", [IA3Config, VeraConfig, OFTConfig, LoHaConfig, OSFConfig])
def test_other_adapters_are_refused_before_a_layer_is_replaced(kind, llama):
    """OSF passed packed layers over in silence; others named no way out."""
    packing = fs.FlashSparseConfig(ignore=["lm_head", "re:.*layers\\.0\\..*"])
    model = tiny.load(llama.masked, quantization_config=packing)
    before = {name: type(module) for name, module in model.named_modules()}
    more = {"feedforward_modules": ["down_proj"]} if kind is IA3Config else {}
    refused = r"no \w+ adapter for packed layers, such as layer 'model\.layers\.1.*LoraConfig"
    with pytest.raises(ValueError, match=refused):
        get_peft_model(model, kind(target_modules=["q_proj", "down_proj"], **more))
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_adapters_of_dense_layers_of_a_packed_model_are_let_through(llama):
    model = tiny.load(llama.packed)
    adapted = get_peft_model(model, LNTuningConfig(target_modules=["input_layernorm"]))
    assert all("layernorm" in name for name, p in adapted.named_parameters() if p.requires_grad)


def test_register_again_changes_nothing():
    before = LoraConfig.__post_init__
    integration.register()
    assert LoraConfig.__post_init__ is before


def test_all_linear_means_packed_layers_too(llama):
    """All but the output head, as of a dense model, packed or not; a second adapter finds them."""
    names = {}
    for kind in ("masked", "packed"):
        model = tiny.load(getattr(llama, kind))
        wanted = LoraConfig(r=4, target_modules="all-linear")
        adapted = get_peft_model(model, wanted)
        names[kind] = set(adapted.peft_config["default"].target_modules)
        adapted.add_adapter("second", LoraConfig(r=2, target_modules="all-linear"))
        assert set(adapted.peft_config["second"].target_modules) == names[kind]
    assert names["packed"] == names["masked"]
    assert len(names["packed"]) == 2 * 7
    ids = tiny.prompt()["input_ids"]
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert len([p for p in adapted.parameters() if p.grad is not None]) == 2 * 2 * 7
