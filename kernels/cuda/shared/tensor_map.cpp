// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/tensor_map.h"

#include <cuda.h>

#include <cstring>

namespace flashsparse::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up at run time: an object that is linked to the driver could not be loaded without one.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(found)
             : nullptr;
}

}  // namespace

cudaError_t make_tensor_map(const TiledMatrix& matrix, TensorMap* map) {
  static const Encode encode = find_encode();
  if (!encode) return cudaErrorNotSupported;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap), "one is the other");
  constexpr cuuint32_t kTileCols = 64;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.cols),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * sizeof(uint16_t)};
  const cuuint32_t tile[] = {kTileCols, static_cast<cuuint32_t>(matrix.tile_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap made;
  // The type is an integer so that the copy does not touch NaN.
  const CUresult error =
      encode(&made, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<uint16_t*>(matrix.data), sizes,
             strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) return cudaErrorInvalidValue;
  std::memcpy(map, &made, sizeof made);
  return cudaSuccess;
}

}  // namespace flashsparse::cuda
