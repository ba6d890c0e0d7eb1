// SPDX-License-Identifier: Apache-2.0
// Runs the kernel that quantizes x and the W8A8 wgmma kernel over every case on stdin, and writes y
// to stdout (wgmma_case.h; values are fp8_e4m3 or int8).
#include "cuda/mma_units/quantise_x.cuh"
#include "emulator/sparse_24/wgmma_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

// In the shapes that differ: units that are loaded at once, groups of rows of a warpgroup.
template <class Type, class Codes>
auto find_kernel(const WgmmaShapeInfo& shape) -> decltype(WgmmaCompiled::float16) {
  using Operand = CodesOperand<Codes>;
  if (shape.high == 2) {
    return shape.groups == 6 ? wgmma_kernel_in<Type, Operand, 32, 6, 2>()
                             : wgmma_kernel_in<Type, Operand, 32, 4, 2>();
  }
  if (shape.tokens == 64 && shape.groups == 3) return wgmma_kernel_in<Type, Operand, 64, 3>();
  if (shape.tokens == 96 && shape.groups == 4) return wgmma_kernel_in<Type, Operand, 96, 4>();
  return nullptr;
}

template <class Type, class Codes>
void run(const WgmmaCase& c) {
  const int64_t bytes = mma_units::quantised_stride(c.cols);
  const auto codes = driver::unwritten<uint16_t>(c.tokens * bytes / 2);
  const auto scales = driver::unwritten<float>(c.tokens);
  simt::launch(simt::dim3(c.tokens), mma_units::kQuantiseThreads, c.seed, [&] {
    mma_units::quantise_x_kernel<Type, Codes>(c.x.get(), static_cast<int>(c.stride()),
                                              reinterpret_cast<uint4*>(codes.get()), scales.get(),
                                              nullptr);
  });
  c.run(find_kernel<Type, Codes>(c.plan.info()),
        {codes.get(), c.tokens, bytes / 2, bytes / 2, c.plan.copied_tokens()}, scales.get());
}

template <class Codes>
void run(const WgmmaCase& c) {
  c.bfloat16 ? run<BFloat16, Codes>(c) : run<Float16, Codes>(c);
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  WgmmaCase c;
  while (c.read(1)) c.plan.unit.type == ValueType::kFp8 ? run<Fp8Codes>(c) : run<Int8Codes>(c);
}
