// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/nm_gather/nm_gather.h"
#include "cuda/nm_gather/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t nm_gather_unpack(const nm_gather::Layout& layout, const nm_gather::Stored& stored,
                             int64_t rows, int64_t cols, bool bfloat16, uint16_t* weight,
                             cudaStream_t stream) {
  const int64_t units = layout.units(rows);
  const int64_t panels = nm_gather::ceil_div(cols, layout.panel_columns);
  const dim3 blocks(static_cast<uint32_t>(panels),
                    static_cast<uint32_t>(std::min<int64_t>(units, 65535)));
  const int shared = (layout.unit_rows * layout.panel_columns * 2 + 15) / 16 * 16;
  const auto kernel = nm_gather::unpack_kernel_of(layout.value_type, bfloat16);
  kernel<<<blocks, nm_gather::kUnpackThreads, shared, stream>>>(
      nm_gather::weight_of(layout, cols, stored), layout.unit_rows, static_cast<int>(units), rows,
      cols, weight);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
