// SPDX-License-Identifier: Apache-2.0
// Checks of the decode attention ops' arguments, on every device; contents are not read. The
// arguments are described in flashsparse_plugin/ops/attention.py.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "bindings/torch_stable.h"

namespace flashsparse {

inline constexpr int64_t kDecodeHeadDims[] = {64, 80, 96, 128, 256};

// The options of both ops.
struct DecodeOptions {
  double scale;
  std::optional<Tensor> phi;  // float32 [heads]
  double low, high;           // bounds of a part's sum of e^(score - phi)
  double softcap;
  int64_t window;
  std::optional<Tensor> sinks;                   // [heads], float32 or in the dtype of query
  std::optional<Tensor> key_scale, value_scale;  // float32, one number or [kv_heads]
};

struct DecodeInputs {
  Tensor query, key, value;
  std::optional<Tensor> table, lengths, mask;
  DecodeOptions options;
  int64_t sequences, heads, kv_heads, head_dim;
  int64_t positions;         // of a sequence, at most
  int64_t pages, page_size;  // without a table a sequence is one page
  // Dimensions of key and value: pages, heads, positions.
  int page_axis, head_axis, position_axis;

  int64_t group() const { return heads / kv_heads; }
  bool codes() const { return key.scalar_type() == ScalarType::Float8_e4m3fn; }
};

// Distance between two entries of a dimension. PyTorch gives any number if there is a single entry.
inline int64_t step(const Tensor& tensor, int dimension) {
  return tensor.size(dimension) > 1 ? tensor.stride(dimension) : 0;
}

namespace detail {

inline void check_beside(const Tensor& tensor, const char* name, const Tensor& query) {
  const bool same = query.is_cuda()
                        ? tensor.is_cuda() && tensor.get_device_index() == query.get_device_index()
                        : tensor.is_cpu();
  FS_CHECK(same, name, " must be on the device of query");
}

inline void check_cache(const Tensor& tensor, const char* name, const Tensor& query) {
  check_beside(tensor, name, query);
  FS_CHECK(tensor.scalar_type() == query.scalar_type() ||
               tensor.scalar_type() == ScalarType::Float8_e4m3fn,
           name, " must have the dtype of query, or be float8_e4m3fn");
  FS_CHECK(tensor.dim() == 4, name, " must have 4 dimensions, has ", tensor.dim());
  FS_CHECK(tensor.size(3) == query.size(2), name, " has heads of ", tensor.size(3),
           " elements, query of ", query.size(2));
  FS_CHECK(tensor.stride(3) == 1 || tensor.numel() == 0, name,
           " must have its last dimension contiguous: pass ", name, ".contiguous()");
}

inline void check_int32(const Tensor& tensor, const char* name, int64_t dims, const Tensor& query) {
  check_beside(tensor, name, query);
  FS_CHECK(tensor.scalar_type() == ScalarType::Int, name, " must be int32");
  FS_CHECK(tensor.dim() == dims, name, " must have ", dims, " dimensions, has ", tensor.dim());
  FS_CHECK(tensor.size(0) == query.size(0), name, " is for ", tensor.size(0),
           " sequences, query for ", query.size(0));
  FS_CHECK(tensor.stride(dims - 1) == 1 || tensor.numel() <= 1, name, " must be contiguous: pass ",
           name, ".contiguous()");
}

// The bounds of a part's sum: what the dtype can hold, or narrower ones of the caller.
inline std::pair<double, double> sound_sums(ScalarType dtype, std::optional<double> low,
                                            std::optional<double> high) {
  // Terms are rounded to the dtype on CUDA: fp16 has little precision below 2^-14. Overflow shows
  // as infinity; 2^60 leaves room for the values by which terms are multiplied.
  const double least = dtype == ScalarType::Half ? 0x1p-4 : 0x1p-60, most = 0x1p60;
  const double from = low ? std::exp(*low) : least, to = high ? std::exp(*high) : most;
  // Tolerance for a caller who computes the limits as log(2) * exponent.
  FS_CHECK(from >= least * (1 - 1e-9) && to <= most * (1 + 1e-9) && from < to,
           "low and high must be rising, and within ", std::log(least), " and ", std::log(most),
           ", which is what sums in this dtype can hold");
  return {from, to};
}

inline void check_query(const Tensor& query) {
  FS_CHECK(query.dim() == 3, "query must be [sequences, heads, head_dim], has ", query.dim(),
           " dimensions");
  bool known = false;
  for (const int64_t head_dim : kDecodeHeadDims) known = known || head_dim == query.size(2);
  FS_CHECK(known, "head_dim must be 64, 80, 96, 128 or 256, not ", query.size(2));
  FS_CHECK(query.stride(2) == 1 || query.numel() == 0,
           "query must have its last dimension contiguous: pass query.contiguous()");
}

// One number for each query head.
inline void check_of_heads(const Tensor& tensor, const char* name, const DecodeInputs& inputs) {
  check_beside(tensor, name, inputs.query);
  FS_CHECK(tensor.dim() == 1 && tensor.size(0) == inputs.heads, name, " must be [", inputs.heads,
           "], one number a query head");
  FS_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

// What the codes of a cache are multiplied by.
inline void check_scale(const std::optional<Tensor>& scale, const char* name,
                        const DecodeInputs& inputs) {
  if (!scale) return;
  check_beside(*scale, name, inputs.query);
  FS_CHECK(inputs.codes(), name, " is for keys and values in float8_e4m3fn");
  FS_CHECK(scale->scalar_type() == ScalarType::Float, name, " must be float32");
  FS_CHECK(scale->numel() == 1 || (scale->dim() == 1 && scale->size(0) == inputs.kv_heads), name,
           " must be one number, or [", inputs.kv_heads, "], one a kv head");
  FS_CHECK(scale->is_contiguous(), name, " must be contiguous");
}

inline void check_options(const DecodeInputs& inputs) {
  const DecodeOptions& options = inputs.options;
  FS_CHECK(std::isfinite(options.scale) && options.scale > 0,
           "scale must be above 0 and finite, not ", options.scale);
  FS_CHECK(std::isfinite(options.softcap) && options.softcap >= 0,
           "softcap must be 0 (none) or above and finite, not ", options.softcap);
  FS_CHECK(options.window >= 0, "window must be 0 (none) or above, not ", options.window);
  FS_CHECK(inputs.kv_heads >= 1 && inputs.heads % inputs.kv_heads == 0, inputs.heads,
           " query heads cannot share ", inputs.kv_heads, " kv heads evenly");
  constexpr int64_t kMostPositions = 1 << 30;
  FS_CHECK(inputs.positions <= kMostPositions, "a sequence may have ", kMostPositions,
           " positions, not ", inputs.positions);
  FS_CHECK(inputs.key.scalar_type() == inputs.value.scalar_type(),
           "keys and values must have one dtype");
  check_scale(options.key_scale, "key_scale", inputs);
  check_scale(options.value_scale, "value_scale", inputs);
  if (options.phi) {
    check_of_heads(*options.phi, "phi", inputs);
    FS_CHECK(options.phi->scalar_type() == ScalarType::Float, "phi must be float32");
  }
  if (options.sinks) {
    check_of_heads(*options.sinks, "sinks", inputs);
    const ScalarType dtype = options.sinks->scalar_type();
    FS_CHECK(dtype == ScalarType::Float || dtype == inputs.query.scalar_type(),
             "sinks must be float32 or have the dtype of query");
  }
}

inline DecodeOptions options_of(const Tensor& query, double scale, const std::optional<Tensor>& phi,
                                std::optional<double> low, std::optional<double> high,
                                double softcap, int64_t window, const std::optional<Tensor>& sinks,
                                const std::optional<Tensor>& key_scale,
                                const std::optional<Tensor>& value_scale) {
  const auto [from, to] = sound_sums(query.scalar_type(), low, high);
  return {scale, phi, from, to, softcap, window, sinks, key_scale, value_scale};
}

}  // namespace detail

// `out`: a caller's tensor for the result.
inline void check_out(const Tensor& out, const DecodeInputs& inputs) {
  const Tensor& query = inputs.query;
  detail::check_beside(out, "out", query);
  FS_CHECK(out.scalar_type() == query.scalar_type(), "out must have the dtype of query");
  bool same = out.dim() == 3 && out.is_contiguous();
  for (int i = 0; same && i < 3; ++i) same = out.size(i) == query.size(i);
  FS_CHECK(same, "out must be contiguous and of the shape of query, [", inputs.sequences, ", ",
           inputs.heads, ", ", inputs.head_dim, "]");
}

inline Tensor new_out(const DecodeInputs& inputs) {
  return allocate_like(inputs.query, {inputs.sequences, inputs.heads, inputs.head_dim});
}

inline DecodeInputs check_decode(const Tensor& query, const Tensor& key, const Tensor& value,
                                 const std::optional<Tensor>& lengths,
                                 const std::optional<Tensor>& mask, double scale,
                                 const std::optional<Tensor>& phi, std::optional<double> low,
                                 std::optional<double> high, double softcap, int64_t window,
                                 const std::optional<Tensor>& sinks,
                                 const std::optional<Tensor>& key_scale,
                                 const std::optional<Tensor>& value_scale) {
  detail::check_query(query);
  detail::check_cache(key, "key", query);
  detail::check_cache(value, "value", query);
  FS_CHECK(key.size(0) == query.size(0), "key is for ", key.size(0), " sequences, query for ",
           query.size(0));
  for (int i = 0; i < 3; ++i) {
    FS_CHECK(key.size(i) == value.size(i), "value must have the shape of key, in dimension ", i,
             " ", key.size(i), ", not ", value.size(i));
  }
  if (lengths) detail::check_int32(*lengths, "lengths", 1, query);
  if (mask) {
    detail::check_beside(*mask, "mask", query);
    FS_CHECK(mask->scalar_type() == ScalarType::Bool, "mask must be bool");
    FS_CHECK(mask->dim() == 2 && mask->size(0) == query.size(0) && mask->size(1) == key.size(2),
             "mask must be [", query.size(0), ", ", key.size(2), "], a row a sequence");
    FS_CHECK(mask->stride(1) == 1 || mask->size(1) <= 1,
             "mask must have its last dimension contiguous: pass mask.contiguous()");
  }
  DecodeInputs inputs{query,
                      key,
                      value,
                      std::nullopt,
                      lengths,
                      mask,
                      detail::options_of(query, scale, phi, low, high, softcap, window, sinks,
                                         key_scale, value_scale),
                      query.size(0),
                      query.size(1),
                      key.size(1),
                      query.size(2),
                      key.size(2),
                      key.size(0),
                      key.size(2),
                      0,
                      1,
                      2};
  detail::check_options(inputs);
  return inputs;
}

inline DecodeInputs check_paged_decode(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const Tensor& table, const Tensor& lengths, double scale,
                                       const std::optional<Tensor>& phi, std::optional<double> low,
                                       std::optional<double> high, double softcap, int64_t window,
                                       const std::optional<Tensor>& sinks,
                                       const std::optional<Tensor>& key_scale,
                                       const std::optional<Tensor>& value_scale) {
  detail::check_query(query);
  detail::check_cache(key, "key_cache", query);
  detail::check_cache(value, "value_cache", query);
  for (int i = 0; i < 3; ++i) {
    FS_CHECK(key.size(i) == value.size(i),
             "value_cache must have the shape of key_cache, in dimension ", i, " ", key.size(i),
             ", not ", value.size(i));
  }
  const int64_t page_size = key.size(1);
  FS_CHECK(page_size >= 16 && page_size % 16 == 0,
           "blocks of the cache must have a multiple of 16 positions, not ", page_size);
  detail::check_int32(table, "block_table", 2, query);
  detail::check_int32(lengths, "lengths", 1, query);
  FS_CHECK(key.size(0) <= INT32_MAX, "block_table cannot name ", key.size(0), " blocks");
  DecodeInputs inputs{query,
                      key,
                      value,
                      table,
                      lengths,
                      std::nullopt,
                      detail::options_of(query, scale, phi, low, high, softcap, window, sinks,
                                         key_scale, value_scale),
                      query.size(0),
                      query.size(1),
                      key.size(2),
                      query.size(2),
                      key.size(0) == 0 ? 0 : table.size(1) * page_size,
                      key.size(0),
                      page_size,
                      0,
                      2,
                      1};
  detail::check_options(inputs);
  return inputs;
}

}  // namespace flashsparse
