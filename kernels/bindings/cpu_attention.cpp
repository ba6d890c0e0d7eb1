// SPDX-License-Identifier: Apache-2.0
// Decode attention on the CPU. The schemas are in cpu_ops.cpp.
#include <tuple>

#include "bindings/decode_checks.h"
#include "cpu/decode.h"

namespace flashsparse {
namespace {

Dtype dtype_of(const Tensor& query) {
  switch (query.scalar_type()) {
    case ScalarType::Float:
      return Dtype::kFloat32;
    case ScalarType::Half:
      return Dtype::kFloat16;
    case ScalarType::BFloat16:
      return Dtype::kBFloat16;
    default:
      STD_TORCH_CHECK(false, "query must be float32, float16 or bfloat16");
      return Dtype::kFloat32;
  }
}

// Writes attention to `out` and returns how many parts of it were computed again.
Tensor decode(const DecodeInputs& inputs, const Tensor& out) {
  STD_TORCH_CHECK(inputs.query.is_cpu(), "query must be on the CPU here");
  Tensor recomputed =
      torch::stable::new_empty(inputs.query, {inputs.sequences, inputs.heads}, ScalarType::Int);
  const auto strides = [&](const Tensor& t) -> cpu::DecodeCall::Strides {
    return {step(t, inputs.page_axis), step(t, inputs.head_axis), step(t, inputs.position_axis)};
  };
  cpu::DecodeCall call;
  call.sequences = inputs.sequences;
  call.kv_heads = inputs.kv_heads;
  call.group = inputs.group();
  call.positions = inputs.positions;
  call.head_dim = static_cast<int>(inputs.head_dim);
  call.dtype = dtype_of(inputs.query);
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
  call.low = static_cast<float>(inputs.options.low);
  call.high = static_cast<float>(inputs.options.high);
  call.out = out.mutable_data_ptr();
  call.recomputed = recomputed.mutable_data_ptr<int32_t>();
  const std::string error = cpu::decode(call);
  STD_TORCH_CHECK(error.empty(), error);
  return recomputed;
}

std::tuple<Tensor, Tensor> decode(const DecodeInputs& inputs) {
  Tensor out = new_out(inputs);
  return {out, decode(inputs, out)};
}

std::tuple<Tensor, Tensor> unified_max_decode(const Tensor& query, const Tensor& key,
                                              const Tensor& value,
                                              const std::optional<Tensor>& lengths,
                                              const std::optional<Tensor>& mask, double scale,
                                              const std::optional<Tensor>& phi,
                                              std::optional<double> low, std::optional<double> high,
                                              double softcap, int64_t window) {
  return decode(
      check_decode(query, key, value, lengths, mask, scale, phi, low, high, softcap, window));
}

std::tuple<Tensor, Tensor> unified_max_paged_decode(
    const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& block_table, const Tensor& lengths, double scale,
    const std::optional<Tensor>& phi, std::optional<double> low, std::optional<double> high,
    double softcap, int64_t window) {
  return decode(check_paged_decode(query, key_cache, value_cache, block_table, lengths, scale, phi,
                                   low, high, softcap, window));
}

Tensor unified_max_paged_decode_out(const Tensor& query, const Tensor& key_cache,
                                    const Tensor& value_cache, const Tensor& block_table,
                                    const Tensor& lengths, double scale,
                                    const std::optional<Tensor>& phi, std::optional<double> low,
                                    std::optional<double> high, double softcap, int64_t window,
                                    const Tensor& out) {
  const DecodeInputs inputs = check_paged_decode(query, key_cache, value_cache, block_table,
                                                 lengths, scale, phi, low, high, softcap, window);
  check_out(out, inputs);
  return decode(inputs, out);
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("unified_max_decode", TORCH_BOX(&unified_max_decode));
  m.impl("unified_max_paged_decode", TORCH_BOX(&unified_max_paged_decode));
  m.impl("unified_max_paged_decode.out", TORCH_BOX(&unified_max_paged_decode_out));
}

}  // namespace
}  // namespace flashsparse
