// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_vector/nm_vector.h"
#include "cuda/nm_vector/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t nm_vector_unpack(const NmVectorRows& packed, const nm_vector::Pattern& pattern,
                             int64_t rows, int64_t cols, Dtype dtype, void* weight,
                             cudaStream_t stream) {
  using namespace nm_vector;
  const auto tiles = UnpackTiles::of(pattern, cols);
  const auto extent = Extent::of(pattern, cols);
  if (tiles.count(rows) > INT32_MAX) return cudaErrorInvalidValue;
  with_values(
      packed.values, packed.type, packed.scales, packed.group, extent.kept, cols, dtype,
      [&](const auto& values) {
        using Value = typename std::decay_t<decltype(values)>::Value;
        const int shared = tiles.shared_bytes(extent, sizeof(Value));
        unpack_kernel<<<static_cast<uint32_t>(tiles.count(rows)), kUnpackThreads, shared, stream>>>(
            values, packed.index, extent, tiles, rows, static_cast<int>(cols),
            static_cast<Value*>(weight));
      });
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
