// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/tiled_bitmap.h"
#include "cuda/tiled_bitmap/units_grid.h"
#include "cuda/tiled_bitmap/unpack.cuh"
#include "cuda/tiled_bitmap/unpack_codes.cuh"

namespace flashsparse {
namespace {

bool can_unpack(const uint32_t* packed, int64_t num_lines, int64_t rows, int64_t cols) {
  return tiled_bitmap::can_number_units(rows, cols) && num_lines >= 0 && num_lines <= INT32_MAX &&
         reinterpret_cast<uintptr_t>(packed) % sizeof(uint4) == 0;
}

template <class Items>
cudaError_t unpack(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                   const float* scales, int64_t rows, int64_t cols, uint16_t* weight,
                   cudaStream_t stream) {
  using namespace tiled_bitmap;
  if (!can_unpack(packed, num_lines, rows, cols)) return cudaErrorInvalidValue;
  unpack_kernel<Items><<<blocks_of(rows, cols, kUnpackWarps), kUnpackThreads, 0, stream>>>(
      packed, static_cast<uint32_t>(num_lines), offsets, scales, rows, cols, weight);
  return cudaGetLastError();
}

}  // namespace

namespace cuda {

cudaError_t tiled_bitmap_unpack(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream) {
  return unpack<tiled_bitmap::ValueItems>(packed, num_lines, offsets, nullptr, rows, cols, weight,
                                          stream);
}

cudaError_t tiled_bitmap_unpack_codes(const uint32_t* packed, int64_t num_lines,
                                      const int32_t* offsets, const float* scales, int64_t rows,
                                      int64_t cols, bool bfloat16, uint16_t* weight,
                                      cudaStream_t stream) {
  const auto of_type = bfloat16 ? unpack<tiled_bitmap::CodeItems<BFloat16>>
                                : unpack<tiled_bitmap::CodeItems<Float16>>;
  return of_type(packed, num_lines, offsets, scales, rows, cols, weight, stream);
}

cudaError_t tiled_bitmap_unpack_beside_x(const uint32_t* packed, int64_t num_lines,
                                         const int32_t* offsets, int64_t rows, int64_t cols,
                                         int64_t stride, void* codes, cudaStream_t stream) {
  using namespace tiled_bitmap;
  if (!can_unpack(packed, num_lines, rows, cols)) return cudaErrorInvalidValue;
  unpack_codes_kernel<<<blocks_of(rows, cols, kUnpackWarps), kUnpackThreads, 0, stream>>>(
      packed, static_cast<uint32_t>(num_lines), offsets, rows, cols, stride,
      static_cast<unsigned char*>(codes));
  return cudaGetLastError();
}

}  // namespace cuda
}  // namespace flashsparse
