// SPDX-License-Identifier: Apache-2.0
// Launches with programmatic dependent launch (PDL): the kernel may start before the preceding one
// in the stream has ended. Hopper and later.
//
// Why no kernel of a chain A, B, C reads or overwrites too early, although B signals
// launch_dependents at its first instruction and C may start while A still runs.
// griddepcontrol.wait of C returns when B has ended and its writes are visible. B ends when all of
// its threads have ended, and one of them at least has waited for A; so A has ended then, too, and
// its writes were visible to B, hence to C. The same holds for all kernels before A. This needs of
// every kernel that is launched so:
//   - some thread waits on every path, even if the kernel has nothing to read: a kernel that could
//     end without waiting would let the next one pass while an earlier one still writes;
//   - before its wait a thread reads nothing but weights, which no kernel of a stream writes, and
//     writes nothing in global memory: outputs, workspaces and arrival counters may still be in use
//     by earlier kernels, as allocators and arrivals.h hand them out in the order of the stream;
//   - what earlier kernels wrote is not read by load_readonly (common/memory.cuh).
// A kernel that is launched without PDL, of ours or of anyone, starts when all before it have ended
// and asks nothing of them. tests/kernels/test_dependent_launch.py checks the second rule.
#pragma once
#include <cuda_runtime.h>

namespace flashsparse::cuda {

// `early`: whether to use PDL.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared_bytes,
                         bool early, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace flashsparse::cuda
