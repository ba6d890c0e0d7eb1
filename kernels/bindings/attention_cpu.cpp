// SPDX-License-Identifier: Apache-2.0
// The ops of decode attention: their schemas, and the CPU implementations.
#include "bindings/attention.h"
#include "bindings/cpu.h"
#include "cpu/decode.h"

namespace flashsparse {
namespace {

// Writes attention to `out` and returns, for each head of each sequence, whether it was recomputed.
Tensor decode(const DecodeInputs& inputs, const Tensor& out) {
  FS_CHECK(inputs.query.is_cpu(), "query must be on the CPU here");
  Tensor recomputed =
      allocate_like(inputs.query, {inputs.sequences, inputs.heads}, ScalarType::Int);
  const auto strides = [&](const Tensor& t) -> cpu::DecodeCall::Strides {
    return {step(t, inputs.page_axis), step(t, inputs.head_axis), step(t, inputs.position_axis)};
  };
  cpu::DecodeCall call;
  call.sequences = inputs.sequences;
  call.kv_heads = inputs.kv_heads;
  call.group = inputs.group();
  call.positions = inputs.positions;
  call.head_dim = static_cast<int>(inputs.head_dim);
  call.dtype = dtype_of(inputs.query.scalar_type(), "query");
  call.query = inputs.query.const_data_ptr();
  call.query_sequence = step(inputs.query, 0);
  call.query_head = step(inputs.query, 1);
  call.key = inputs.key.const_data_ptr();
  call.value = inputs.value.const_data_ptr();
  call.key_strides = strides(inputs.key);
  call.value_strides = strides(inputs.value);
  call.table = inputs.table ? inputs.table->const_data_ptr<int32_t>() : nullptr;
  call.table_stride = inputs.table ? step(*inputs.table, 0) : 0;
  call.pages = inputs.pages;
  call.page_size = inputs.page_size;
  call.lengths = inputs.lengths ? inputs.lengths->const_data_ptr<int32_t>() : nullptr;
  call.mask = inputs.mask ? static_cast<const uint8_t*>(inputs.mask->const_data_ptr()) : nullptr;
  call.mask_stride = inputs.mask ? step(*inputs.mask, 0) : 0;
  call.window = inputs.options.window;
  call.scale = static_cast<float>(inputs.options.scale);
  call.softcap = static_cast<float>(inputs.options.softcap);
  call.phi = inputs.options.phi ? inputs.options.phi->const_data_ptr<float>() : nullptr;
  const std::optional<Tensor>& sinks = inputs.options.sinks;
  call.sinks = sinks ? sinks->const_data_ptr() : nullptr;
  call.sinks_dtype = sinks ? dtype_of(sinks->scalar_type(), "sinks") : Dtype::kFloat32;
  const auto scale = [](const std::optional<Tensor>& t) -> cpu::DecodeCall::Scale {
    return {t ? t->const_data_ptr<float>() : nullptr, t && t->numel() > 1};
  };
  call.codes = inputs.codes();
  call.key_scale = scale(inputs.options.key_scale);
  call.value_scale = scale(inputs.options.value_scale);
  call.low = static_cast<float>(inputs.options.low);
  call.high = static_cast<float>(inputs.options.high);
  call.out = out.mutable_data_ptr();
  call.recomputed = recomputed.mutable_data_ptr<int32_t>();
  const std::string error = cpu::decode(call);
  FS_CHECK(error.empty(), error);
  return recomputed;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "unified_max_decode(Tensor query, Tensor key, Tensor value, Tensor? lengths=None, "
      "Tensor? mask=None, *, float scale, Tensor? phi=None, float? low=None, float? high=None, "
      "float softcap=0.0, int window=0, Tensor? sinks=None, Tensor? key_scale=None, "
      "Tensor? value_scale=None) -> (Tensor out, Tensor recomputed)");
  m.def(
      "unified_max_paged_decode(Tensor query, Tensor key_cache, Tensor value_cache, "
      "Tensor block_table, Tensor lengths, *, float scale, Tensor? phi=None, float? low=None, "
      "float? high=None, float softcap=0.0, int window=0, Tensor? sinks=None, "
      "Tensor? key_scale=None, Tensor? value_scale=None) -> (Tensor out, Tensor recomputed)");
  m.def(
      "unified_max_paged_decode.out(Tensor query, Tensor key_cache, Tensor value_cache, "
      "Tensor block_table, Tensor lengths, *, float scale, Tensor? phi=None, float? low=None, "
      "float? high=None, float softcap=0.0, int window=0, Tensor? sinks=None, "
      "Tensor? key_scale=None, Tensor? value_scale=None, Tensor(a!) out) -> Tensor recomputed");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) { DecodeOps<decode>::implement(m); }

}  // namespace
}  // namespace flashsparse
