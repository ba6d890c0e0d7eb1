// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/nm_gather/nm_gather.h"
#include "cuda/nm_gather/transpose_x.cuh"

namespace flashsparse::cuda {

cudaError_t nm_gather_transpose_x(const uint16_t* x, int x_stride, int tokens, int64_t columns,
                                  uint16_t* x_tiles, cudaStream_t stream) {
  const int64_t tiles = nm_gather::x_tile_count(tokens);
  const dim3 blocks(
      static_cast<uint32_t>(nm_gather::ceil_div(columns, nm_gather::kTransposeColumns)),
      static_cast<uint32_t>(std::min<int64_t>(tiles, 65535)));
  nm_gather::transpose_x_kernel<<<blocks, nm_gather::kTransposeThreads, 0, stream>>>(
      x, x_stride, tokens, static_cast<int>(tiles), static_cast<int>(columns), x_tiles);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
