// SPDX-License-Identifier: Apache-2.0
// 2:4 sparse tensor cores: A keeps two of every four columns. All 32 lanes of the warp call these
// together. Fragments are those of mma.cuh, except that A has 16 rows x 32 columns, of which the 16
// kept ones are stored, and B 32 rows x 8 columns:
//   A   a[i]: row group + 8 * (i % 2), the kept ones of the four columns from 4 * (lane % 4) +
//             16 * (i / 2) on, the lower column first
//   B   b[i]: rows pair + 8 * i and next, column group
//   metadata  two bits for each kept element, its column in the group of four; the first element
//             lowest, the two of a group ascending. Lanes 2 * half and 2 * half + 1 of each quad
//             provide it, where `half` is the template argument: the first of them for columns 0 to
//             15, the second for columns 16 to 31; bits 0 to 15 for row group, four bits for each
//             group of columns, and bits 16 to 31 for row group + 8. The words of the other two
//             lanes are not read.
//
// 8-bit values, e4m3 or int8, are multiplied 64 columns at a time, of which the 32 kept ones are
// stored. Fragments (PTX ISA, "Matrix Fragments for sparse mma.m16n8k64"), four values a word:
//   A   a[i]: row group + 8 * (i % 2), the kept ones of the eight columns from 8 * (lane % 4) +
//             32 * (i / 2) on, the lower column first
//   B   b[i]: rows 4 * (lane % 4) + 16 * i to the third after it, column group
//   metadata  all lanes provide it: row group + 8 * (lane % 2), columns 32 * (lane % 4 / 2) to the
//             31st after it, four bits for each group of four columns
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

// d += a * b, with products and accumulation in fp32.
template <class Dtype, int half>
__device__ __forceinline__ void mma_sparse_m16n8k32(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[4], uint32_t metadata) {
  static_assert(half == 0 || half == 1, "the first two lanes of four, or the others");
  detail::mma_sparse_m16n8k32<half>(Dtype{}, d, a, b, metadata);
}

// Whether the GPU that is compiled for has mma of e4m3. For compute capability 9.0 and 10.0 ptxas
// converts both sides to 16-bit floats, which takes longer than converting one of them here.
#if __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define FS_MMA_FP8
inline constexpr bool kHasMmaFp8 = true;
#else
inline constexpr bool kHasMmaFp8 = false;
#endif

// d += a * b, both e4m3, accumulated in fp32.
__device__ __forceinline__ void mma_sparse_fp8(float (&d)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[4], uint32_t metadata) {
#ifdef FS_MMA_FP8
  asm volatile(
      "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata));
#endif
}
#undef FS_MMA_FP8

// d += a * b, both int8; exact if the sums fit in 32 bits.
__device__ __forceinline__ void mma_sparse_int8(int32_t (&d)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[4], uint32_t metadata) {
  asm volatile(
      "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0;"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata));
}

#else

inline constexpr bool kHasMmaFp8 = true;

namespace detail {

// An emulated product of 8-bit values. add(sum, a, b) adds the product of two values to a sum.
template <class Sum, class Add>
void mma_sparse_codes(Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                      uint32_t metadata, const char* name, simt::Place place, const Add& add) {
  struct Argument {
    uint32_t a[4], b[4], metadata;
    Sum d[4];
  } argument{
      {a[0], a[1], a[2], a[3]}, {b[0], b[1], b[2], b[3]}, metadata, {d[0], d[1], d[2], d[3]}};
  simt::collective(
      ~uint32_t{0}, name, simt::Lines::kSame, simt::Order::kNone, place, argument,
      [&](auto lanes, uint32_t) SIMT_UNWATCHED {
        uint8_t values[16][32], columns[8][64];
        int places[16][32];  // the column of each value
        for (int lane = 0; lane < 32; ++lane) {
          const int group = lane / 4, t = lane % 4;
          for (int i = 0; i < 4; ++i) {
            const int row = group + 8 * (i % 2), first = 4 * t + 16 * (i / 2);
            const uint32_t word = lanes[lane - t + 2 * (i / 2) + i % 2]->metadata >> 8 * t;
            for (int e = 0; e < 4; ++e) {
              values[row][first + e] = lanes[lane]->a[i] >> 8 * e & 0xff;
              places[row][first + e] = 2 * first + e / 2 * 4 + static_cast<int>(word >> 2 * e & 3);
              columns[group][4 * t + 16 * i + e] = lanes[lane]->b[i] >> 8 * e & 0xff;
            }
            for (int e = 0; e < 4; e += 2) {
              if (places[row][first + e] >= places[row][first + e + 1])
                simt::fail("the metadata of lane %d are not in rising order (%s:%d)", lane,
                           place.file_name(), place.line);
            }
          }
        }
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
            auto sum = add.begin(lanes[lane]->d[i]);
            for (int k = 0; k < 32; ++k)
              sum = add(sum, values[row][k], columns[column][places[row][k]]);
            lanes[lane]->d[i] = add.end(sum);
          }
        }
      });
  std::memcpy(d, argument.d, sizeof d);
}

// Accumulates exactly (to fp64) and rounds once.
struct AddFp8 {
  double begin(float sum) const { return sum; }
  double operator()(double sum, uint8_t a, uint8_t b) const {
    return sum + double{kFp8Floats[a]} * kFp8Floats[b];
  }
  float end(double sum) const { return std::isnan(sum) ? NAN : static_cast<float>(sum); }
};

struct AddInt8 {
  simt::Place place;

  int32_t begin(int32_t sum) const { return sum; }
  int32_t operator()(int32_t sum, uint8_t a, uint8_t b) const {
    if (__builtin_add_overflow(sum, int{static_cast<int8_t>(a)} * static_cast<int8_t>(b), &sum))
      simt::fail("an int32 sum overflows (%s:%d)", place.file_name(), place.line);
    return sum;
  }
  int32_t end(int32_t sum) const { return sum; }
};

}  // namespace detail

inline void mma_sparse_fp8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                           uint32_t metadata, simt::Place place = simt::Place::here()) {
  detail::mma_sparse_codes(d, a, b, metadata, "mma_sparse_fp8", place, detail::AddFp8{});
}
inline void mma_sparse_int8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                            uint32_t metadata, simt::Place place = simt::Place::here()) {
  detail::mma_sparse_codes(d, a, b, metadata, "mma_sparse_int8", place, detail::AddInt8{place});
}

// Accumulates exactly (to fp64) and rounds once; the hardware rounds more often and less
// accurately.
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
                         // Otherwise the host's compiler would decide which NaN results.
                         lanes[lane]->d[i] = std::isnan(sum) ? NAN : static_cast<float>(sum);
                       }
                     }
                   });
  std::memcpy(d, argument.d, sizeof d);
}

#endif

}  // namespace flashsparse
