// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes y to stdout (linear_case.h).
#include "cuda/sparse_24/linear.cuh"
#include "emulator/sparse_24/emulated.h"
#include "emulator/sparse_24/linear_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

template <class Shape, class Values>
Compiled emulated_in() {
  if constexpr (is_emulated(Shape::kInfo, Values::kLayout)) {
    return compiled_in<Shape, Values>();
  } else {
    return {};
  }
}

template <class Values>
Compiled emulated(int shape) {
#define FS_EMULATED(tokens, row_units, warps) \
  emulated_in<Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_SPARSE_24_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return compiled[shape];
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  LinearCase c;
  while (c.read(2)) {
    const Compiled compiled = with_values(
        c.plan.unit, [&](auto values) { return emulated<decltype(values)>(c.plan.shape); });
    c.run(compiled, c.x.get(), c.stride(), c.has_x_scales ? c.x_scales.get() : nullptr);
  }
}
