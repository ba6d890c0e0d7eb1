// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/linear_compiled.h"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

namespace {

template <exact_units::Kind kind>
exact_units::Compiled compiled_for(const exact_units::LinearPlan& plan) {
  using exact_units::compiled_linear;
  const int tokens = plan.info().tokens;
  return (tokens == 8    ? compiled_linear<8, kind>()
          : tokens == 16 ? compiled_linear<16, kind>()
          : tokens == 32 ? compiled_linear<32, kind>()
                         : compiled_linear<64, kind>())[plan.shape];
}

}  // namespace

cudaError_t exact_units_linear(const exact_units::Arguments& arguments,
                               const exact_units::LinearPlan& plan, bool early,
                               cudaStream_t stream) {
  using namespace exact_units;
  const Compiled kernel =
      plan.kind == Kind::kDense ? compiled_for<Kind::kDense>(plan) : compiled_for<Kind::k24>(plan);
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  const cudaError_t error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const mma_units::Cut cut = cut_of(plan, arguments.rows, arguments.cols, early);
  return launch_early(kernel, plan.blocks, plan.threads(), shared_bytes, early, stream, arguments,
                      cut);
}

}  // namespace flashsparse::cuda
