// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_vector/nm_vector.h"
#include "cuda/nm_vector/pack.cuh"

namespace flashsparse::cuda {

template <class Value>
cudaError_t nm_vector_pack(const Value* weight, int64_t rows, int64_t cols,
                           const nm_vector::Pattern& pattern, Value* values, uint8_t* index,
                           int32_t* breaches, cudaStream_t stream) {
  const auto tile = nm_vector::PackTile::of(pattern);
  const int64_t tiles = tile.tiles(pattern, rows, cols);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  nm_vector::pack_kernel<<<static_cast<uint32_t>(tiles), nm_vector::kPackThreads,
                           tile.shared_bytes(pattern), stream>>>(weight, rows, cols, pattern, tile,
                                                                 values, index, breaches);
  return cudaGetLastError();
}

#define FS_INSTANTIATE(Value)                                                                    \
  template cudaError_t nm_vector_pack(const Value*, int64_t, int64_t, const nm_vector::Pattern&, \
                                      Value*, uint8_t*, int32_t*, cudaStream_t);
FS_INSTANTIATE(uint16_t)
FS_INSTANTIATE(uint32_t)

}  // namespace flashsparse::cuda
