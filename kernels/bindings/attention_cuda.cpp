// SPDX-License-Identifier: Apache-2.0
// Decode attention on CUDA. Does not synchronize, so that CUDA graphs can capture it.
#include <climits>

#include "bindings/attention.h"
#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "cuda/attention/unified_max_decode.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using unified_max::DecodePlan;
using unified_max::Problem;

// Elements of the cache that the kernel copies at a time, 16 bytes.
int64_t chunk_of(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Float8_e4m3fn ? 16 : 8;
}

void check_rows(const Tensor& tensor, const char* name) {
  bool aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0, near = true;
  for (int i = 0; i < 3; ++i) {
    aligned = aligned && step(tensor, i) % chunk_of(tensor) == 0;
    near = near && step(tensor, i) <= INT32_MAX;
  }
  FS_CHECK(aligned, name, " must have its rows on 16 bytes: pass ", name, ".clone()");
  FS_CHECK(near, name, " must have strides below 2^31 elements");
}

void check_tensors(const DecodeInputs& inputs) {
  const Tensor& query = inputs.query;
  FS_CHECK(query.is_cuda(), "query must be on a CUDA device here");
  FS_CHECK(query.scalar_type() == ScalarType::Half || query.scalar_type() == ScalarType::BFloat16,
           "query must be float16 or bfloat16 on CUDA");
  const bool even = step(query, 0) % 2 == 0 && step(query, 1) % 2 == 0;
  FS_CHECK(even && reinterpret_cast<uintptr_t>(query.const_data_ptr()) % 4 == 0,
           "query must have its rows on 4 bytes: pass query.clone()");
  check_rows(inputs.key, inputs.table ? "key_cache" : "key");
  check_rows(inputs.value, inputs.table ? "value_cache" : "value");
  constexpr int64_t kMostOfAxis = 65535;  // of a grid dimension
  FS_CHECK(inputs.sequences <= kMostOfAxis && inputs.heads <= kMostOfAxis,
           "at most 65535 sequences and query heads, not ", inputs.sequences, " and ",
           inputs.heads);
}

// Writes attention to `out` and returns how many parts of it were recomputed.
Tensor decode(const DecodeInputs& inputs, const Tensor& out) {
  check_tensors(inputs);
  FS_CHECK(reinterpret_cast<uintptr_t>(out.const_data_ptr()) % 8 == 0, "out must start on 8 bytes");
  const Tensor& query = inputs.query;
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  Tensor recomputed = allocate_like(query, {inputs.sequences, inputs.heads}, ScalarType::Int);
  if (out.numel() == 0) return recomputed;

  const Problem problem{inputs.sequences,
                        inputs.kv_heads,
                        inputs.group(),
                        inputs.options.window > 0
                            ? std::min(inputs.positions, inputs.options.window + unified_max::kTile)
                            : inputs.positions,
                        static_cast<int>(inputs.head_dim),
                        inputs.codes() ? 1 : 2};
  const DecodePlan plan = plan_decode(problem, gpu_of(query));
  const cudaStream_t stream = current_stream(query);
  Tensor partials = allocate_like(query, {plan.partial_floats(problem)}, ScalarType::Float);
  const auto strides = [&](const Tensor& t) -> unified_max::Strides {
    return {static_cast<uint32_t>(step(t, inputs.page_axis) / chunk_of(t)),
            static_cast<uint32_t>(step(t, inputs.head_axis) / chunk_of(t)),
            static_cast<uint32_t>(step(t, inputs.position_axis) / chunk_of(t))};
  };
  unified_max::DecodeArguments arguments;
  arguments.query = bits(query);
  arguments.query_sequence = step(query, 0);
  arguments.query_head = step(query, 1);
  arguments.key = inputs.key.const_data_ptr();
  arguments.value = inputs.value.const_data_ptr();
  arguments.key_strides = strides(inputs.key);
  arguments.value_strides = strides(inputs.value);
  arguments.table = inputs.table ? inputs.table->const_data_ptr<int32_t>() : nullptr;
  arguments.table_stride = inputs.table ? step(*inputs.table, 0) : 0;
  arguments.pages = static_cast<uint32_t>(inputs.pages);
  arguments.page_tiles =
      inputs.table ? static_cast<uint32_t>(inputs.page_size / unified_max::kTile) : INT_MAX;
  arguments.lengths = inputs.lengths ? inputs.lengths->const_data_ptr<int32_t>() : nullptr;
  arguments.positions = static_cast<int>(inputs.positions);
  arguments.mask =
      inputs.mask ? static_cast<const uint8_t*>(inputs.mask->const_data_ptr()) : nullptr;
  arguments.mask_stride = inputs.mask ? step(*inputs.mask, 0) : 0;
  arguments.window = static_cast<int>(std::min<int64_t>(inputs.options.window, INT_MAX));
  arguments.kv_heads = static_cast<int>(inputs.kv_heads);
  arguments.group = static_cast<int>(inputs.group());
  arguments.scaling = {inputs.options.scale, inputs.options.softcap};
  arguments.phi = inputs.options.phi ? inputs.options.phi->const_data_ptr<float>() : nullptr;
  const std::optional<Tensor>& sinks = inputs.options.sinks;
  arguments.sinks = sinks ? sinks->const_data_ptr() : nullptr;
  arguments.sinks_float32 = sinks && sinks->scalar_type() == ScalarType::Float;
  const std::optional<Tensor>& key_scale = inputs.options.key_scale;
  const std::optional<Tensor>& value_scale = inputs.options.value_scale;
  arguments.key_scale = key_scale ? key_scale->const_data_ptr<float>() : nullptr;
  arguments.value_scale = value_scale ? value_scale->const_data_ptr<float>() : nullptr;
  arguments.key_scales_of_heads = key_scale && key_scale->numel() > 1;
  arguments.value_scales_of_heads = value_scale && value_scale->numel() > 1;
  arguments.low = static_cast<float>(inputs.options.low);
  arguments.high = static_cast<float>(inputs.options.high);
  arguments.out = static_cast<uint16_t*>(out.mutable_data_ptr());
  arguments.recomputed = recomputed.mutable_data_ptr<int32_t>();
  arguments.partials = static_cast<float*>(partials.mutable_data_ptr());
  arguments.arrivals = nullptr;
  if (plan.splits > 1) {
    STD_CUDA_CHECK(cuda::arrivals(stream, problem.rows(), &arguments.arrivals));
  }
  const bool dependent = gpu_of(query).has_dependent_launch();
  const bool bfloat16 = query.scalar_type() == ScalarType::BFloat16;
  STD_CUDA_CHECK(cuda::unified_max_decode(arguments, problem, plan, bfloat16,
                                          dependent && begins_early(inputs.key), stream));
  lets_begin(out);
  return recomputed;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) { DecodeOps<decode>::implement(m); }

}  // namespace
}  // namespace flashsparse
