// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/nm_gather/nm_gather.h"
#include "cuda/nm_gather/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t nm_gather_unpack(const nm_gather::Layout& layout, const void* values, const void* index,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream) {
  const nm_gather::Weight packed = nm_gather::weight_of(layout, cols, values, index);
  const int64_t units = layout.units(rows);
  const int64_t panels = nm_gather::ceil_div(cols, layout.panel_columns);
  const dim3 blocks(static_cast<uint32_t>(panels),
                    static_cast<uint32_t>(std::min<int64_t>(units, 65535)));
  const int shared = (layout.unit_rows * layout.panel_columns * 2 + 15) / 16 * 16;
  nm_gather::unpack_kernel<<<blocks, nm_gather::kUnpackThreads, shared, stream>>>(
      packed, layout.unit_rows, static_cast<int>(units), rows, cols, weight);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
