// SPDX-License-Identifier: Apache-2.0
// Sparse tensor cores: a product whose A keeps two of every four columns. All 32 lanes of the warp
// must come together. The fragments are those of mma.cuh, with A 16 rows x 32 columns of which the
// 16 that are kept are stored, and B 32 rows x 8 columns:
//   A   a[i]: row group + 8 * (i % 2), what is kept of the columns 4 * (lane % 4) + 16 * (i / 2)
//   and
//             the three after them, the lower column first
//   B   b[i]: rows pair + 8 * i and next, column group
//   metadata  two bits for each kept element, which of the four columns it is in, the first element
//             lowest and the two of four in rising order. The lanes 2 * half and 2 * half + 1 of
//             each four give it, where `half` is that template argument: the first of them for the
//             columns 0 to 15, the second for 16 to 31; bits 0 to 15 for row group, four bits for
//             every four columns, and bits 16 to 31 for row group + 8. The other two lanes' words
//             are not read.
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"

namespace flashsparse {

#ifdef __CUDACC__

namespace detail {

#define FS_MMA_SPARSE(Type, name)                                                                  \
  template <int half>                                                                              \
  __device__ __forceinline__ void mma_sparse_m16n8k32(Type, float (&d)[4], const uint32_t (&a)[4], \
                                                      const uint32_t (&b)[4], uint32_t metadata) { \
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." name "." name       \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, "                   \
                 "{%0, %1, %2, %3}, %12, %13;"                                                     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]),    \
                   "r"(b[3]), "r"(metadata), "n"(half));                                           \
  }
FS_MMA_SPARSE(Float16, "f16")
FS_MMA_SPARSE(BFloat16, "bf16")
#undef FS_MMA_SPARSE

}  // namespace detail

// d += a * b, with products and sums in fp32.
template <class Dtype, int half>
__device__ __forceinline__ void mma_sparse_m16n8k32(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[4], uint32_t metadata) {
  static_assert(half == 0 || half == 1, "the first two lanes of four, or the others");
  detail::mma_sparse_m16n8k32<half>(Dtype{}, d, a, b, metadata);
}

#else

// Sums exactly (to fp64) and rounds once, where the hardware rounds more often and less well.
template <class Dtype, int half>
void mma_sparse_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                         uint32_t metadata, simt::Place place = simt::Place::here()) {
  static_assert(half == 0 || half == 1, "as for the GPU");
  struct Argument {
    uint32_t a[4], b[4], metadata;
    float d[4];
  } argument{
      {a[0], a[1], a[2], a[3]}, {b[0], b[1], b[2], b[3]}, metadata, {d[0], d[1], d[2], d[3]}};
  simt::collective(~uint32_t{0}, "mma_sparse_m16n8k32", simt::Lines::kSame, simt::Order::kNone,
                   place, argument, [&](auto lanes, uint32_t) SIMT_UNWATCHED {
                     const float* const table = detail::kFloats<Dtype>.data();
                     double values[16][16], columns[8][32];
                     int places[16][16];  // the column of each value
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, pair = lane % 4 * 2;
                       for (int i = 0; i < 4; ++i) {
                         const int row = group + 8 * (i % 2), first = pair + 8 * (i / 2);
                         const uint32_t word = lanes[lane - lane % 4 + 2 * half + i / 2]->metadata;
                         const uint32_t two = word >> (16 * (i % 2) + 4 * (lane % 4));
                         for (int e = 0; e < 2; ++e) {
                           values[row][first + e] = table[lanes[lane]->a[i] >> 16 * e & 0xffff];
                           places[row][first + e] = 2 * first + static_cast<int>(two >> 2 * e & 3);
                           columns[group][pair + 8 * i + e] =
                               table[lanes[lane]->b[i] >> 16 * e & 0xffff];
                         }
                         if (places[row][first] >= places[row][first + 1])
                           simt::fail("the metadata of lane %d are not in rising order (%s:%d)",
                                      lane, place.file_name(), place.line);
                       }
                     }
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, pair = lane % 4 * 2;
                       for (int i = 0; i < 4; ++i) {
                         const int row = group + 8 * (i / 2);
                         double sum = lanes[lane]->d[i];
                         for (int k = 0; k < 16; ++k)
                           sum += values[row][k] * columns[pair + i % 2][places[row][k]];
                         // Which NaN a sum gives would be up to the host's compiler.
                         lanes[lane]->d[i] = std::isnan(sum) ? NAN : static_cast<float>(sum);
                       }
                     }
                   });
  std::memcpy(d, argument.d, sizeof d);
}

#endif

}  // namespace flashsparse
