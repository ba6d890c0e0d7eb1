// SPDX-License-Identifier: Apache-2.0
// The ops of decode attention, the same on every device except for the kernel.
#pragma once
#include <optional>
#include <tuple>

#include "bindings/attention_checks.h"

namespace flashsparse {

// `decode` writes attention to a tensor of the shape of query; it returns int32 [sequences, heads],
// the number of parts of each that were recomputed.
template <Tensor (*decode)(const DecodeInputs& inputs, const Tensor& out)>
struct DecodeOps {
  static std::tuple<Tensor, Tensor> unified_max_decode(
      const Tensor& query, const Tensor& key, const Tensor& value,
      const std::optional<Tensor>& lengths, const std::optional<Tensor>& mask, double scale,
      const std::optional<Tensor>& phi, std::optional<double> low, std::optional<double> high,
      double softcap, int64_t window, const std::optional<Tensor>& sinks,
      const std::optional<Tensor>& key_scale, const std::optional<Tensor>& value_scale) {
    return with_new_out(check_decode(query, key, value, lengths, mask, scale, phi, low, high,
                                     softcap, window, sinks, key_scale, value_scale));
  }

  static std::tuple<Tensor, Tensor> unified_max_paged_decode(
      const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
      const Tensor& block_table, const Tensor& lengths, double scale,
      const std::optional<Tensor>& phi, std::optional<double> low, std::optional<double> high,
      double softcap, int64_t window, const std::optional<Tensor>& sinks,
      const std::optional<Tensor>& key_scale, const std::optional<Tensor>& value_scale) {
    return with_new_out(check_paged_decode(query, key_cache, value_cache, block_table, lengths,
                                           scale, phi, low, high, softcap, window, sinks, key_scale,
                                           value_scale));
  }

  static Tensor unified_max_paged_decode_out(
      const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
      const Tensor& block_table, const Tensor& lengths, double scale,
      const std::optional<Tensor>& phi, std::optional<double> low, std::optional<double> high,
      double softcap, int64_t window, const std::optional<Tensor>& sinks,
      const std::optional<Tensor>& key_scale, const std::optional<Tensor>& value_scale,
      const Tensor& out) {
    const DecodeInputs inputs =
        check_paged_decode(query, key_cache, value_cache, block_table, lengths, scale, phi, low,
                           high, softcap, window, sinks, key_scale, value_scale);
    check_out(out, inputs);
    return decode(inputs, out);
  }

  // Registers them as implementations for the library's device.
  template <class Library>
  static void implement(Library& m) {
    m.impl("unified_max_decode", TORCH_BOX(&unified_max_decode));
    m.impl("unified_max_paged_decode", TORCH_BOX(&unified_max_paged_decode));
    m.impl("unified_max_paged_decode.out", TORCH_BOX(&unified_max_paged_decode_out));
  }

 private:
  static std::tuple<Tensor, Tensor> with_new_out(const DecodeInputs& inputs) {
    Tensor out = new_out(inputs);
    return {out, decode(inputs, out)};
  }
};

}  // namespace flashsparse
