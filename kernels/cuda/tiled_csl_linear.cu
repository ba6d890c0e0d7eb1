// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "cuda/linear_plan.h"
#include "cuda/tiled_csl.h"
#include "cuda/tiled_csl_linear.cuh"

namespace flashsparse::cuda {

namespace {

using namespace tiled_csl;
using Kernel = void (*)(LinearArguments);

struct Compiled {
  Kernel float16, bfloat16;
  int threads;
  uint32_t shared_bytes;
};

#define FS_COMPILED(...)                              \
  {linear_kernel<Float16, LinearShape<__VA_ARGS__>>,  \
   linear_kernel<BFloat16, LinearShape<__VA_ARGS__>>, \
   LinearShape<__VA_ARGS__>::kThreads,                \
   LinearShape<__VA_ARGS__>::kSharedBytes},
constexpr Compiled kCompiled[] = {FS_LINEAR_SHAPES(FS_COMPILED)};
#undef FS_COMPILED

}  // namespace

cudaError_t tiled_csl_linear(const LinearCall& call, const LinearPlan& plan, cudaStream_t stream) {
  const Compiled& compiled = kCompiled[plan.shape];
  const Kernel kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(compiled.shared_bytes));
  if (error != cudaSuccess) return error;
  LinearArguments arguments;
  arguments.words = call.words;
  arguments.offsets = call.offsets;
  arguments.x = call.x;
  arguments.x_stride = static_cast<int>(call.x_stride);
  arguments.bias = call.bias;
  arguments.y = call.y;
  arguments.partials = call.partials;
  arguments.arrivals = call.arrivals;
  arguments.rows = static_cast<int>(call.rows);
  arguments.cols = static_cast<int>(call.cols);
  arguments.tokens = static_cast<int>(call.tokens);
  arguments.tile_rows = static_cast<int>(tile_rows(call.rows));
  arguments.tile_cols = static_cast<int>(tile_cols(call.cols));
  arguments.group_rows = plan.group_rows;
  kernel<<<plan.blocks, compiled.threads, compiled.shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
