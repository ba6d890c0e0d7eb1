// SPDX-License-Identifier: Apache-2.0
// Tensor cores and their operands: PTX ldmatrix and mma, and the 16-bit floats. All 32 lanes of a
// warp call ldmatrix and mma together. Layout of fragments, with group = lane / 4 and pair = lane %
// 4 * 2; a register holds two elements, the lower column first:
//   A, 16 rows x 16 columns    a[i]: row group + 8 * (i % 2), columns pair + 8 * (i / 2) and next
//   B, 16 rows x 8 columns     bi:   rows pair + 8 * i and next, column group
//   C and D, 16 x 8            d[i]: row group + 8 * (i / 2), column pair + i % 2
//   an 8x8 matrix of ldmatrix  r:    row group, columns pair and next
// Of bytes, four to a register, A has 32 columns and B 32 rows: 2 * pair takes the place of pair.
#pragma once
#include "common/device.cuh"

#ifndef __CUDACC__
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/float16.h"
#include "common/memory.cuh"
#endif

namespace flashsparse {

// Tags for the dtypes of operands, which are uint16_t in memory.
struct Float16 {};
struct BFloat16 {};

#ifdef __CUDACC__

// Loads four 8x8 matrices of 16-bit elements, one for each register: lane i gives the address of
// row i % 8 of matrix i / 8, 16-byte aligned, and gets elements pair and pair + 1 of row `group`
// (or of column `group`, if transposed).
template <bool transposed = false>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

// Stores four such matrices, transposed: lane i gives the address to which the 8 elements of column
// i % 8 of matrix i / 8 go. Hopper and later.
__device__ __forceinline__ void store_transposed_x4(uint32_t address, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#endif
}

// Transposes an 8x8 matrix of 16-bit elements in the warp's registers.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

namespace detail {

__device__ __forceinline__ void mma_m16n8k16(Float16, float (&d)[4], const uint32_t (&a)[4],
                                             uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_m16n8k16(BFloat16, float (&d)[4], const uint32_t (&a)[4],
                                             uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint16_t from_float(Float16, float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ uint16_t from_float(BFloat16, float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ uint32_t from_floats(Float16, float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ uint32_t from_floats(BFloat16, float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ float to_float(Float16, uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ float to_float(BFloat16, uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

}  // namespace detail

// d += a * b, with products and accumulation in fp32.
template <class Dtype>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  detail::mma_m16n8k16(Dtype{}, d, a, b0, b1);
}

// d += a * b, of unsigned bytes a and signed bytes b: exact, modulo 2^32.
__device__ __forceinline__ void mma_m16n8k32(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

namespace detail {

template <int matrices, bool transposed>
void ldmatrix(uint32_t (&r)[matrices], uint32_t address, simt::Place place) {
  struct Argument {
    uint4 row;  // at this lane's address
    uint32_t r[matrices];
  } argument{};
  // Read here, so that the access belongs to the lane that gives the address.
  if (simt::current->lane < 8 * matrices)
    argument.row = shared_at<uint4>(address, "ldmatrix", place);
  simt::collective(~uint32_t{0}, "ldmatrix", simt::Lines::kSame, simt::Order::kNone, place,
                   argument, [](auto lanes, uint32_t) SIMT_UNWATCHED {
                     for (int i = 0; i < matrices; ++i) {
                       uint16_t rows[8][8];
                       for (int row = 0; row < 8; ++row)
                         __builtin_memcpy(rows[row], &lanes[8 * i + row]->row, sizeof rows[row]);
                       for (int lane = 0; lane < 32; ++lane) {
                         const int group = lane / 4, pair = lane % 4 * 2;
                         const uint32_t low = transposed ? rows[pair][group] : rows[group][pair];
                         const uint32_t high =
                             transposed ? rows[pair + 1][group] : rows[group][pair + 1];
                         lanes[lane]->r[i] = low | high << 16;
                       }
                     }
                   });
  std::memcpy(r, argument.r, sizeof r);
}

inline float to_float(Float16, uint16_t bits) { return float_from_float16(bits); }
inline float to_float(BFloat16, uint16_t bits) { return float_from_bfloat16(bits); }

inline constexpr uint16_t kNan = 0x7fff;  // result of the hardware's conversions, for both dtypes
inline uint16_t from_float(Float16, float value) {
  return std::isnan(value) ? kNan : float16_from_float(value);
}
inline uint16_t from_float(BFloat16, float value) {
  return std::isnan(value) ? kNan : bfloat16_from_float(value);
}

template <class Dtype>
uint32_t from_floats(Dtype dtype, float low, float high) {
  return from_float(dtype, low) | static_cast<uint32_t>(from_float(dtype, high)) << 16;
}

// Every 16-bit float as fp32: a table is faster than conversion. Initialized before `main`: on
// first use it would order threads for the race detector in a way that a GPU does not.
template <class Dtype>
inline const std::vector<float> kFloats = [] {
  std::vector<float> floats(1 << 16);
  for (uint32_t bits = 0; bits < floats.size(); ++bits)
    floats[bits] = to_float(Dtype{}, static_cast<uint16_t>(bits));
  return floats;
}();

// Every e4m3 value.
inline const std::vector<float> kFp8Floats = [] {
  std::vector<float> floats(256);
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, units = (code & 7) + (exponent ? 8 : 0);
    const float magnitude = std::ldexp(static_cast<float>(units), std::max(exponent, 1) - 10);
    floats[code] = (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -magnitude : magnitude;
  }
  return floats;
}();

struct MmaArgument {
  uint32_t a[4], b[2];
  float d[4];
};

}  // namespace detail

template <bool transposed = false>
void ldmatrix_x4(uint32_t (&r)[4], uint32_t address, simt::Place place = simt::Place::here()) {
  detail::ldmatrix<4, transposed>(r, address, place);
}

inline void store_transposed_x4(uint32_t address, const uint32_t (&r)[4],
                                simt::Place place = simt::Place::here()) {
  struct Argument {
    uint32_t r[4];
    uint4 column;  // for this lane's address
  } argument{{r[0], r[1], r[2], r[3]}, {}};
  simt::collective(~uint32_t{0}, "store_transposed_x4", simt::Lines::kSame, simt::Order::kNone,
                   place, argument, [](auto lanes, uint32_t) SIMT_UNWATCHED {
                     for (int lane = 0; lane < 32; ++lane) {
                       const int matrix = lane / 8, column = lane % 8;
                       uint16_t elements[8];
                       for (int row = 0; row < 8; ++row)
                         elements[row] = static_cast<uint16_t>(
                             lanes[row * 4 + column / 2]->r[matrix] >> column % 2 * 16);
                       __builtin_memcpy(&lanes[lane]->column, elements, sizeof elements);
                     }
                   });
  detail::shared_to_store<uint4>(address, place) = argument.column;
}

inline uint32_t transpose_8x8(uint32_t matrix, simt::Place place = simt::Place::here()) {
  simt::collective(~uint32_t{0}, "transpose_8x8", simt::Lines::kSame, simt::Order::kNone, place,
                   matrix, [](auto lanes, uint32_t) SIMT_UNWATCHED {
                     uint32_t elements[8][8];  // transposed
                     for (int lane = 0; lane < 32; ++lane) {
                       elements[lane % 4 * 2][lane / 4] = *lanes[lane] & 0xffff;
                       elements[lane % 4 * 2 + 1][lane / 4] = *lanes[lane] >> 16;
                     }
                     for (int lane = 0; lane < 32; ++lane) {
                       const uint32_t* const two = &elements[lane / 4][lane % 4 * 2];
                       *lanes[lane] = two[0] | two[1] << 16;
                     }
                   });
  return matrix;
}

// Accumulates exactly (to fp64) and rounds once; the hardware rounds more often and less
// accurately.
template <class Dtype>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  simt::Place place = simt::Place::here()) {
  detail::MmaArgument argument{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  simt::collective(~uint32_t{0}, "mma_m16n8k16", simt::Lines::kSame, simt::Order::kNone, place,
                   argument, [](auto lanes, uint32_t) SIMT_UNWATCHED {
                     const float* const table = detail::kFloats<Dtype>.data();
                     double rows[16][16], columns[8][16];
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, pair = lane % 4 * 2;
                       for (int i = 0; i < 4; ++i) {
                         double* const two = &rows[group + 8 * (i % 2)][pair + 8 * (i / 2)];
                         two[0] = table[lanes[lane]->a[i] & 0xffff];
                         two[1] = table[lanes[lane]->a[i] >> 16];
                       }
                       for (int i = 0; i < 2; ++i) {
                         double* const two = &columns[group][pair + 8 * i];
                         two[0] = table[lanes[lane]->b[i] & 0xffff];
                         two[1] = table[lanes[lane]->b[i] >> 16];
                       }
                     }
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, pair = lane % 4 * 2;
                       for (int i = 0; i < 4; ++i) {
                         const double* const row = rows[group + 8 * (i / 2)];
                         const double* const column = columns[pair + i % 2];
                         double sum = lanes[lane]->d[i];
                         for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
                         // Otherwise the host's compiler would decide which NaN results.
                         lanes[lane]->d[i] = std::isnan(sum) ? NAN : static_cast<float>(sum);
                       }
                     }
                   });
  std::memcpy(d, argument.d, sizeof d);
}

inline void mma_m16n8k32(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         simt::Place place = simt::Place::here()) {
  struct Argument {
    uint32_t a[4], b[2], d[4];
  } argument{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  simt::collective(~uint32_t{0}, "mma_m16n8k32", simt::Lines::kSame, simt::Order::kNone, place,
                   argument, [](auto lanes, uint32_t) SIMT_UNWATCHED {
                     uint8_t rows[16][32];
                     int8_t columns[8][32];
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, four = lane % 4 * 4;
                       for (int i = 0; i < 4; ++i)
                         __builtin_memcpy(&rows[group + 8 * (i % 2)][four + 16 * (i / 2)],
                                          &lanes[lane]->a[i], 4);
                       for (int i = 0; i < 2; ++i)
                         __builtin_memcpy(&columns[group][four + 16 * i], &lanes[lane]->b[i], 4);
                     }
                     for (int lane = 0; lane < 32; ++lane) {
                       const int group = lane / 4, pair = lane % 4 * 2;
                       for (int i = 0; i < 4; ++i) {
                         const uint8_t* const row = rows[group + 8 * (i / 2)];
                         const int8_t* const column = columns[pair + i % 2];
                         for (int k = 0; k < 32; ++k)
                           lanes[lane]->d[i] += static_cast<uint32_t>(row[k] * column[k]);
                       }
                     }
                   });
  std::memcpy(d, argument.d, sizeof d);
}

#endif

// Rounds to nearest, ties to even; NaN stays NaN.
template <class Dtype>
__device__ __forceinline__ uint16_t from_float(float value) {
  return detail::from_float(Dtype{}, value);
}

// Rounds two at once, `low` to the lower half.
template <class Dtype>
__device__ __forceinline__ uint32_t from_floats(float low, float high) {
  return detail::from_floats(Dtype{}, low, high);
}

template <class Dtype>
__device__ __forceinline__ float to_float(uint16_t bits) {
  return detail::to_float(Dtype{}, bits);
}

}  // namespace flashsparse
