// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA ops of sparse_24.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/override.h"
#include "bindings/sparse_24.h"
#include "cuda/sparse_24/sparse_24.h"

namespace flashsparse {

// A weight's tensors, and their layout.
struct Units {
  const Tensor& units;
  const std::optional<Tensor>& scales;  // of rows
  const sparse_24::UnitLayout layout;

  Units(const Tensor& units_, const std::optional<Tensor>& scales_, const std::string& values,
        int64_t group)
      : units(units_), scales(scales_), layout(sparse_24_layout(values, group)) {
    check_on_cuda(units, "units");
  }

  void check(int64_t out, int64_t in) const { check_sparse_24(units, scales, out, in, layout); }
  const float* scale_data() const { return scales ? scales->const_data_ptr<float>() : nullptr; }
};

// x for the decode kernel: 16-bit floats, or quantized to 8 bits with scales of tokens.
struct FewX {
  const uint16_t* bits;
  int64_t stride;  // from one token to the next, in 16 bits
  const float* scales;
  int bytes;                // of an element: 2, or 1 if quantized
  bool is_rounded = false;  // by a kernel of ours right before
};

// Fills y by mma.sp, with one launch for each max_tokens tokens.
void launch_mma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu, const FewX& x,
                Tensor& y);

// The launch by wgmma.sp of all tokens, of x with elements of x_bytes.
sparse_24::WgmmaPlan wgmma_launch(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                                  int x_bytes);

// Fills y by wgmma.sp in one launch, for 16-bit x. Not `early` where the kernel ahead of it writes
// the units: they are loaded before griddepcontrol.wait.
void launch_wgmma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu, bool early,
                  Tensor& y);

// The same with a plan, and any x; x_scales of tokens if x is quantized.
void launch_wgmma(const LinearInputs& inputs, const Units& packed, const sparse_24::WgmmaPlan& plan,
                  const TiledMatrix& x, const float* x_scales, bool early, Tensor& y);

}  // namespace flashsparse
