// SPDX-License-Identifier: Apache-2.0
// Runs the wgmma kernel over every case on stdin and writes y to stdout (wgmma_case.h).
#include "emulator/sparse_24/wgmma_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

// Quantized values in the shapes that treat them differently: units that are loaded at once, groups
// of rows of a warpgroup. Of 8-bit types with scales of groups, only fp8 by 128 columns and int8 by
// 32.
template <class Values, class Type>
auto codes_kernel(const WgmmaShapeInfo& shape) -> decltype(WgmmaCompiled::float16) {
  using Operand = WidenedOperand<Type, Values>;
  constexpr UnitLayout kUnit = Values::kLayout;
  if constexpr (!has_few_shapes(kUnit)) {
    if (shape.high == 2) {
      return shape.groups == 6 ? wgmma_kernel_in<Type, Operand, 32, 6, 2>()
                               : wgmma_kernel_in<Type, Operand, 32, 4, 2>();
    }
    if (shape.tokens == 64 && shape.groups == 3) return wgmma_kernel_in<Type, Operand, 64, 3>();
    if (shape.tokens == 96 && shape.groups == 4) return wgmma_kernel_in<Type, Operand, 96, 4>();
  } else if constexpr (kUnit.type == ValueType::kInt4 ||
                       kUnit.group == (kUnit.type == ValueType::kFp8 ? 128 : 32)) {
    if (shape.tokens == 64 && shape.groups == 3) return wgmma_kernel_in<Type, Operand, 64, 3>();
    if (shape.tokens == 96 && shape.groups == 3) return wgmma_kernel_in<Type, Operand, 96, 3>();
    if (shape.tokens == 144 && shape.groups == 3) return wgmma_kernel_in<Type, Operand, 144, 3>();
  }
  return nullptr;
}

template <class Type>
auto find_kernel(const WgmmaPlan& plan, decltype(WgmmaCompiled::float16) native) {
  return with_values(plan.unit, [&](auto values) {
    using Values = decltype(values);
    if constexpr (Values::kLayout.type == ValueType::kNative) {
      return native;
    } else {
      return codes_kernel<Values, Type>(plan.info());
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  WgmmaCase c;
  while (c.read(2)) {
    const WgmmaCompiled& native = compiled_wgmma<NativeValues>()[c.plan.shape];
    const auto kernel = c.bfloat16 ? find_kernel<BFloat16>(c.plan, native.bfloat16)
                                   : find_kernel<Float16>(c.plan, native.float16);
    c.run(kernel, {c.x.get(), c.tokens, c.cols, c.stride(), c.plan.copied_tokens()},
          c.has_x_scales ? c.x_scales.get() : nullptr);
  }
}
