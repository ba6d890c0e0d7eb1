// SPDX-License-Identifier: Apache-2.0
// All that we take from PyTorch: the stable ABI, which later releases keep. Bindings only; no
// kernel includes this.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>  // torch 2.11 does not bring it along
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace flashsparse {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// STD_TORCH_CHECK without its prefix of function, file and line: these sentences are for users.
#define FS_CHECK(condition, ...) \
  if (!(condition)) ::flashsparse::fail(__VA_ARGS__)

// What `make` allocates. Of a failure the stable ABI tells the place in its source, and not why.
template <typename Make>
Tensor allocated(const std::vector<int64_t>& shape, const Make& make) {
  try {
    return make();
  } catch (const std::runtime_error&) {
    std::ostringstream sizes;
    for (const int64_t size : shape) sizes << (sizes.tellp() > 0 ? ", " : "") << size;
    fail("out of memory: there is no room for a tensor of [", sizes.str(), "]");
  }
}

inline Tensor allocate(const std::vector<int64_t>& shape, ScalarType dtype) {
  return allocated(shape, [&] { return torch::stable::empty(shape, dtype); });
}
// On the device of `like`, in its dtype unless given.
inline Tensor allocate_like(const Tensor& like, const std::vector<int64_t>& shape,
                            std::optional<ScalarType> dtype = std::nullopt) {
  return allocated(shape, [&] { return torch::stable::new_empty(like, shape, dtype); });
}

// A tensor's memory as kernels take it: 16-bit floats as their bits, int32 words as unsigned.
inline const uint16_t* bits(const Tensor& t) {
  return static_cast<const uint16_t*>(t.const_data_ptr());
}
inline uint16_t* mutable_bits(Tensor& t) { return static_cast<uint16_t*>(t.mutable_data_ptr()); }
inline const uint32_t* words_of(const Tensor& t) {
  return static_cast<const uint32_t*>(t.const_data_ptr());
}
inline uint32_t* mutable_words(Tensor& t) { return static_cast<uint32_t*>(t.mutable_data_ptr()); }
}  // namespace flashsparse
