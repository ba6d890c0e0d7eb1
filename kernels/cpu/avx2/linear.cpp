// SPDX-License-Identifier: Apache-2.0
// The product with AVX2, in fp32. AVX2 has no expand instruction, but can shuffle bytes by a table:
// for each of 256 masks, the position of each of 8 lanes' value among the next 8 in memory.
//
//   mask byte 0b01001101   values  a b c d e f g h
//   table                          0 - 1 2 - - 3 -
//   shuffle                        a 0 b c 0 0 d 0     4 rows x 2 columns
//
// For bf16 the table has 32-bit lanes and puts a value into the upper half of its lane, where it is
// an fp32: one load and one shuffle decode 8 weights.
#include <immintrin.h>

#include <cstdint>

#include "cpu/avx2/parts.h"

namespace {

using flashsparse::cpu::Panel;

#define FS_INLINE inline __attribute__((always_inline))

constexpr int kPanelRows = 16, kQuarters = 4;  // a register holds 4 rows x 2 columns
constexpr int kBlockTokens = 3;  // 12 accumulators, 3 activations and a weight: 16 registers
constexpr intptr_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

template <int kLaneBytes>
struct ShuffleTable {
  alignas(32) uint8_t bytes[256][8 * kLaneBytes];
};

// Values go to the upper two bytes of lanes; index 0x80 gives a zero byte.
template <int kLaneBytes>
constexpr ShuffleTable<kLaneBytes> make_shuffle_table() {
  ShuffleTable<kLaneBytes> table{};
  for (int mask = 0; mask < 256; ++mask) {
    int value = 0;
    for (int lane = 0; lane < 8; ++lane) {
      const bool kept = mask >> lane & 1;
      for (int byte = 0; byte < kLaneBytes; ++byte) {
        const int part = byte - (kLaneBytes - 2);  // 0 and 1: low and high byte of the value
        table.bytes[mask][lane * kLaneBytes + byte] =
            static_cast<uint8_t>(kept && part >= 0 ? 2 * value + part : 0x80);
      }
      value += kept;
    }
  }
  return table;
}

// The same for one-byte values.
struct ByteTable {
  alignas(32) uint8_t bytes[256][8];
};
constexpr ByteTable make_byte_table() {
  ByteTable table{};
  for (int mask = 0; mask < 256; ++mask) {
    int value = 0;
    for (int lane = 0; lane < 8; ++lane) {
      table.bytes[mask][lane] = static_cast<uint8_t>(mask >> lane & 1 ? value++ : 0x80);
    }
  }
  return table;
}

// Decodes the next 8 weights to fp32: lane i gets the next value if bit i of `mask` is set, else
// zero.
struct BFloat16 {
  using Value = uint16_t;
  static constexpr ShuffleTable<4> kShuffle = make_shuffle_table<4>();

  static FS_INLINE __m256 decode(uint32_t mask, const uint16_t* values) {
    const __m256i shuffle =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(kShuffle.bytes[mask & 0xff]));
    const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(next), shuffle));
  }
};

struct Float16 {
  using Value = uint16_t;
  static constexpr ShuffleTable<2> kShuffle = make_shuffle_table<2>();

  static FS_INLINE __m256 decode(uint32_t mask, const uint16_t* values) {
    const __m128i shuffle =
        _mm_load_si128(reinterpret_cast<const __m128i*>(kShuffle.bytes[mask & 0xff]));
    const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm256_cvtph_ps(_mm_shuffle_epi8(next, shuffle));
  }
};

// fp32 values are permuted by 32-bit lanes: a table of each lane's position, negative where it has
// no value; its sign clears the lane.
struct Lanes {
  alignas(32) int32_t of[256][8];
};
constexpr Lanes make_lanes() {
  Lanes table{};
  for (int mask = 0; mask < 256; ++mask) {
    int value = 0;
    for (int lane = 0; lane < 8; ++lane) table.of[mask][lane] = mask >> lane & 1 ? value++ : -1;
  }
  return table;
}

struct Float32 {
  using Value = uint32_t;
  static constexpr Lanes kLanes = make_lanes();

  static FS_INLINE __m256 decode(uint32_t mask, const uint32_t* values) {
    const __m256i lanes =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes.of[mask & 0xff]));
    const __m256 next = _mm256_loadu_ps(reinterpret_cast<const float*>(values));
    const __m256i none = _mm256_srai_epi32(lanes, 31);
    return _mm256_andnot_ps(_mm256_castsi256_ps(none), _mm256_permutevar8x32_ps(next, lanes));
  }
};

// Quantized values are shuffled as bytes, and converted then.
struct Int8 {
  using Value = int8_t;
  static constexpr ByteTable kShuffle = make_byte_table();

  static FS_INLINE __m256 decode(uint32_t mask, const int8_t* values) {
    const __m128i shuffle =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kShuffle.bytes[mask & 0xff]));
    const __m128i next = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_shuffle_epi8(next, shuffle)));
  }
};

FS_INLINE void prefetch(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer) + kPrefetchAhead;
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

// Broadcasts both fp32 activations of a column pair to every 64 bits.
FS_INLINE __m256 broadcast_pair(const float* x) {
  double pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}

// Adds even and odd columns of rows 0-3 (low) and 4-7 (high): 8 rows.
FS_INLINE __m256 add_columns(__m256 low, __m256 high) {
  const __m256d rows = _mm256_castps_pd(_mm256_hadd_ps(low, high));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(rows, 0xd8));
}

template <typename Weight, int kTokens>
void multiply_block(const Panel& panel, int64_t pairs, const float* x, float* sums) {
  __m256 sum[kQuarters][kTokens];
#pragma GCC unroll 4
  for (int q = 0; q < kQuarters; ++q) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[q][t] = _mm256_setzero_ps();
  }
  auto values = static_cast<const typename Weight::Value*>(panel.values);
  for (int64_t k = 0; k < pairs; ++k, x += 2 * kTokens) {
    const uint32_t mask = panel.masks[k];
    prefetch(values);
    if (k % 16 == 0) prefetch(panel.masks + k);
    __m256 activations[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) activations[t] = broadcast_pair(x + 2 * t);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      const int before = __builtin_popcount(mask & ((1u << 8 * q) - 1));
      const __m256 w = Weight::decode(mask >> 8 * q, values + before);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) sum[q][t] = _mm256_fmadd_ps(w, activations[t], sum[q][t]);
    }
    values += __builtin_popcount(mask);
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) {
    _mm256_store_ps(sums + t * kPanelRows, add_columns(sum[0][t], sum[1][t]));
    _mm256_store_ps(sums + t * kPanelRows + 8, add_columns(sum[2][t], sum[3][t]));
  }
}

template <typename Weight>
void multiply(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums) {
  const float* x = static_cast<const float*>(packed);
  switch (tokens) {
    case 1:
      return multiply_block<Weight, 1>(panel, pairs, x, sums);
    case 2:
      return multiply_block<Weight, 2>(panel, pairs, x, sums);
    case 3:
      return multiply_block<Weight, 3>(panel, pairs, x, sums);
    case 4:
      return multiply_block<Weight, 4>(panel, pairs, x, sums);
    default:
      return multiply_block<Weight, 5>(panel, pairs, x, sums);
  }
}

using flashsparse::Dtype;

// Loads 8 activations as fp32.
FS_INLINE __m256 load_activations(const void* x, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return _mm256_loadu_ps(static_cast<const float*>(x));
  const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(x));
  if (dtype == Dtype::kFloat16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// packed[pair][token] = two fp32
void pack_activations(const void* x, Dtype dtype, int64_t in_features, int tokens, int64_t first,
                      int64_t last, void* packed) {
  const int64_t bytes = dtype == Dtype::kFloat32 ? 4 : 2;
  for (int t = 0; t < tokens; ++t) {
    const char* row = static_cast<const char*>(x) + t * in_features * bytes;
    for (int64_t pair = first; pair < last; pair += 4) {
      const int64_t left = in_features - 2 * pair;
      alignas(32) char rest[32] = {};
      if (left < 8) __builtin_memcpy(rest, row + 2 * pair * bytes, left * bytes);
      alignas(32) float columns[8];
      _mm256_store_ps(columns, load_activations(left < 8 ? rest : row + 2 * pair * bytes, dtype));
      const int64_t count = last - pair < 4 ? last - pair : 4;
      for (int64_t i = 0; i < count; ++i) {
        __builtin_memcpy(static_cast<float*>(packed) + ((pair + i) * tokens + t) * 2,
                         columns + 2 * i, 2 * sizeof(float));
      }
    }
  }
}

template <typename Weight>
constexpr flashsparse::cpu::LinearKernels linear_kernels() {
  return {/*activation_bytes=*/8, kBlockTokens, pack_activations, multiply<Weight>};
}

}  // namespace

namespace flashsparse::cpu::avx2 {
const LinearKernels kBFloat16Float32 = linear_kernels<BFloat16>();
const LinearKernels kFloat16Float32 = linear_kernels<Float16>();
const LinearKernels kFloat32 = linear_kernels<Float32>();
const LinearKernels kInt8Float32 = linear_kernels<Int8>();
}  // namespace flashsparse::cpu::avx2
