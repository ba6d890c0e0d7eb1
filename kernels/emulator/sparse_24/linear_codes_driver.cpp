// SPDX-License-Identifier: Apache-2.0
// Runs the kernel that quantizes x and the W8A8 decode kernel over every case on stdin, and writes
// y to stdout (linear_case.h; values are fp8_e4m3 or int8).
#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/sparse_24/linear_codes.cuh"
#include "emulator/sparse_24/linear_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

template <class Codes>
void run(const LinearCase& c) {
  const int64_t stride = mma_units::quantised_stride(c.cols) / 2;
  const auto codes = driver::unwritten<uint16_t>(c.tokens * stride);
  const auto scales = driver::unwritten<float>(c.tokens);
  const auto quantise = c.bfloat16 ? mma_units::quantise_x_kernel<BFloat16, Codes>
                                   : mma_units::quantise_x_kernel<Float16, Codes>;
  {
    const simt::UsedByLastKernel used[] = {{c.x.get(), static_cast<size_t>(c.tokens * c.stride())},
                                           {codes.get(), static_cast<size_t>(c.tokens * stride)},
                                           {scales.get(), static_cast<size_t>(c.tokens)}};
    simt::launch(simt::dim3(c.tokens), mma_units::kQuantiseThreads, c.seed, [&] {
      quantise(c.x.get(), static_cast<int>(c.stride()), reinterpret_cast<uint4*>(codes.get()),
               scales.get(), nullptr);
    });
  }
  c.run(compiled_codes_linear<Codes>()[c.plan.shape], codes.get(), stride, scales.get());
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  LinearCase c;
  while (c.read(1)) c.plan.unit.type == ValueType::kFp8 ? run<Fp8Codes>(c) : run<Int8Codes>(c);
}
