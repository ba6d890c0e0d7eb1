// SPDX-License-Identifier: Apache-2.0
// wgmma with a 2:4 sparse A in registers: the four warps of a warpgroup multiply 64 rows x 32
// columns by B, which the hardware reads from shared memory.
//
// Each warp provides 16 of the rows, as for mma.sp m16n8k32 (mma_sparse.cuh): the same values in
// the same lanes, and the same metadata from the same two lanes of each quad, which the sparsity
// selector names: 0 for the first two, 1 for the others. PTX ISA, "Matrix Fragments for sparse
// wgmma.mma_async.sp .m64nNk32". B is an operand of wgmma.cuh, of which an instruction takes 32
// columns: half of a 128-byte row.
//
// 8-bit values, e4m3 or int8, are multiplied 64 columns at a time, which is the same half of a row,
// and A and metadata are laid out differently ("... sparse wgmma.mma_async.sp .m64nNk64"). a[i] of
// lane 4 g + t holds the kept ones of row g + 8 (i % 2) and the eight columns from 32 (i / 2) + 8 t
// on; bits 4 f to 4 f + 3 of its metadata are for row g + 8 (t % 2) and the four columns from 32 (t
// / 2) + 4 f on. All lanes provide metadata.
#pragma once
#include "common/device.cuh"
#include "common/wgmma.cuh"
#include "common/wgmma_operands.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// d [64, tokens] += a [64, 32] times b [tokens, 32] transposed, d as for wgmma. `a` and `metadata`
// must not change until the group has ended. kIsWgmmaWidth<tokens>.
template <class Type, int tokens, int half>
__device__ __forceinline__ void wgmma_sparse(float (&d)[tokens / 2], const uint32_t (&a)[4],
                                             uint64_t b, const uint32_t& metadata);

// d [64, tokens] += a [64, 64] times b [tokens, 64] transposed, both e4m3. Accumulators keep about
// 14 bits of mantissa from one instruction to the next (DeepSeek-V3 report, section 3.3.2).
template <int tokens>
__device__ __forceinline__ void wgmma_sparse_fp8(float (&d)[tokens / 2], const uint32_t (&a)[4],
                                                 uint64_t b, const uint32_t& metadata);

// The same for int8; exact if the sums fit in 32 bits.
template <int tokens>
__device__ __forceinline__ void wgmma_sparse_int8(int32_t (&d)[tokens / 2], const uint32_t (&a)[4],
                                                  uint64_t b, const uint32_t& metadata);

#define FS_WGMMA(tokens, Type, name, half)                                                      \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma_sparse<Type, tokens, half>(                             \
      float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b, const uint32_t& metadata) {   \
    asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #tokens "k32.f32." name "." name        \
                 " " FS_WGMMA_OPERANDS_##tokens ", " FS_WGMMA_METADATA_##tokens ", " #half      \
                                                                                ", 1, 1, 1, 0;" \
                 : FS_WGMMA_SUMS_##tokens("f")                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(metadata));          \
  }
FS_WGMMA_WIDTHS(FS_WGMMA, Float16, "f16", 0)
FS_WGMMA_WIDTHS(FS_WGMMA, Float16, "f16", 1)
FS_WGMMA_WIDTHS(FS_WGMMA, BFloat16, "bf16", 0)
FS_WGMMA_WIDTHS(FS_WGMMA, BFloat16, "bf16", 1)
#undef FS_WGMMA

#define FS_WGMMA_CODES(tokens, name, Sum, kind, types, signs)                                      \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_sparse_##name<tokens>(                                     \
      Sum(&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b, const uint32_t& metadata) {         \
    asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #tokens "k64." types                       \
                 " " FS_WGMMA_OPERANDS_##tokens ", " FS_WGMMA_METADATA_##tokens ", 0, 1" signs ";" \
                 : FS_WGMMA_SUMS_##tokens(kind)                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(metadata));             \
  }
FS_WGMMA_WIDTHS(FS_WGMMA_CODES, fp8, float, "f", "f32.e4m3.e4m3", ", 1, 1")
FS_WGMMA_WIDTHS(FS_WGMMA_CODES, int8, int32_t, "r", "s32.s8.s8", "")
#undef FS_WGMMA_CODES

#else

namespace detail {

inline constexpr int kSparseDepth = 32;  // columns of B; half of them are kept in A

// The address in the descriptor of B. The hardware does not report wrong descriptors.
inline uint32_t check_sparse_operand(uint64_t operand, int tokens, simt::Place place) {
  const uint32_t address = check_wgmma_operand(operand, tokens, "B", place);
  if (address % (kSparseDepth * sizeof(uint16_t)) != 0)
    simt::fail(
        "B of wgmma_sparse at shared address %#x: neither on 1024 bytes nor 64 after (%s:%d)",
        address, place.file_name(), place.line);
  return address;
}

// Checks that the warp's registers still hold A, and reads B from shared memory.
inline std::vector<uint16_t> read_sparse_operands(const simt::Product& product) {
  {
    const simt::sanitizers::Unwatched unwatched;
    if (std::memcmp(product.registers, product.given, sizeof product.given) != 0 ||
        *product.metadata != product.given_metadata)
      simt::fail("the registers of a wgmma (%s:%d) were overwritten before its wgmma_wait",
                 product.place.file_name(), product.place.line);
  }
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  const unsigned lane = simt::current->lane;
  const unsigned char* const shared = simt::dynamic_shared();
  uint16_t columns[kMostWgmmaTokens / 4 * kSparseDepth];  // see read_wgmma_operands
  const int count = product.tokens / 4 * kSparseDepth;
  for (int i = 0; i < count; i += kChunk) {
    const int token = i / kSparseDepth, k = i % kSparseDepth;
    const uint4 chunk = *reinterpret_cast<const uint4*>(
        shared + wgmma_address(product.b, token / 2 * 8 + lane % 4 * 2 + token % 2, k));
    std::memcpy(&columns[i], &chunk, sizeof chunk);
  }
  return {columns, columns + count};
}

// Accumulates exactly (to fp64) and rounds once. `rows` holds, for each of the thread's two rows,
// 16 values and then their 16 columns.
SIMT_UNWATCHED inline void add_sparse_wgmma(const simt::Product& product, float* sums) {
  constexpr int kKept = kSparseDepth / 2;
  for (int i = 0; i < product.tokens / 2; ++i) {
    const uint16_t* const row = product.rows.data() + i / 2 % 2 * 2 * kKept;
    const uint16_t* const column = product.operands.data() + (i / 4 * 2 + i % 2) * kSparseDepth;
    double sum = sums[i];
    for (int k = 0; k < kKept; ++k)
      sum += double{product.floats[row[k]]} * product.floats[column[row[kKept + k]]];
    // Otherwise the host's compiler would decide which NaN results.
    sums[i] = std::isnan(sum) ? NAN : static_cast<float>(sum);
  }
}

// The two rows of A that a thread's accumulators need, from the lanes of its warp.
SIMT_UNWATCHED inline std::vector<uint16_t> sparse_rows(simt::Product* const* all, unsigned thread,
                                                        int half) {
  constexpr int kKept = kSparseDepth / 2;
  uint16_t rows[4 * kKept];
  simt::Product* const* const four = all + thread / 4 * 4;
  for (int row = 0; row < 2; ++row) {
    for (int k = 0; k < kKept; ++k) {
      const int lane = k / 2 % 4, part = k / 8;
      uint16_t* const kept = &rows[row * 2 * kKept + k];
      kept[0] = four[lane]->given[2 * part + row] >> k % 2 * 16;
      const uint32_t word = four[2 * half + part]->given_metadata;
      kept[kKept] = k / 2 * 4 + (word >> (16 * row + 4 * lane + k % 2 * 2) & 3);
      if (k % 2 == 1 && kept[kKept - 1] >= kept[kKept])
        simt::fail("the metadata of a wgmma are not in rising order (%s:%d)",
                   all[thread]->place.file_name(), all[thread]->place.line);
    }
  }
  return {rows, rows + 4 * kKept};
}

// The same for 8-bit values: 32 values and their columns for each row.
SIMT_UNWATCHED inline std::vector<uint16_t> sparse_code_rows(simt::Product* const* all,
                                                             unsigned thread, int) {
  constexpr int kKept = kSparseDepth;
  uint16_t rows[4 * kKept];
  simt::Product* const* const lanes = all + thread / 4 * 4;
  for (int row = 0; row < 2; ++row) {
    for (int k = 0; k < kKept; ++k) {
      const int part = k / 16, eight = k / 4 % 4, four = k / 2 % 8;
      uint16_t* const kept = &rows[row * 2 * kKept + k];
      kept[0] = lanes[eight]->given[2 * part + row] >> k % 4 * 8 & 0xff;
      const uint32_t word = lanes[2 * part + row]->given_metadata;
      kept[kKept] = k / 2 * 4 + (word >> (4 * four + k % 2 * 2) & 3);
      if (k % 2 == 1 && kept[kKept - 1] >= kept[kKept])
        simt::fail("the metadata of a wgmma are not in rising order (%s:%d)",
                   all[thread]->place.file_name(), all[thread]->place.line);
    }
  }
  return {rows, rows + 4 * kKept};
}

// The value in a column of a row of B.
SIMT_UNWATCHED inline uint8_t code_of(const uint16_t* row, int column) {
  return static_cast<uint8_t>(row[column / 2] >> column % 2 * 8);
}

SIMT_UNWATCHED inline void add_sparse_fp8_wgmma(const simt::Product& product, float* sums) {
  constexpr int kKept = kSparseDepth;
  for (int i = 0; i < product.tokens / 2; ++i) {
    const uint16_t* const row = product.rows.data() + i / 2 % 2 * 2 * kKept;
    const uint16_t* const column = product.operands.data() + (i / 4 * 2 + i % 2) * kSparseDepth;
    double sum = sums[i];
    for (int k = 0; k < kKept; ++k)
      sum += double{product.floats[row[k]]} * product.floats[code_of(column, row[kKept + k])];
    sums[i] = std::isnan(sum) ? NAN : static_cast<float>(sum);
  }
}

// For int32 accumulators, which are stored as the bits of floats.
SIMT_UNWATCHED inline void add_sparse_int8_wgmma(const simt::Product& product, float* sums) {
  constexpr int kKept = kSparseDepth;
  for (int i = 0; i < product.tokens / 2; ++i) {
    const uint16_t* const row = product.rows.data() + i / 2 % 2 * 2 * kKept;
    const uint16_t* const column = product.operands.data() + (i / 4 * 2 + i % 2) * kSparseDepth;
    int32_t sum = 0;
    std::memcpy(&sum, sums + i, sizeof sum);
    for (int k = 0; k < kKept; ++k) {
      const int product_of =
          int{static_cast<int8_t>(row[k])} * static_cast<int8_t>(code_of(column, row[kKept + k]));
      if (__builtin_add_overflow(sum, product_of, &sum))
        simt::fail("an int32 sum of a wgmma overflows (%s:%d)", product.place.file_name(),
                   product.place.line);
    }
    std::memcpy(sums + i, &sum, sizeof sum);
  }
}

using SparseRows = std::vector<uint16_t> (*)(simt::Product* const*, unsigned, int);

inline void issue_sparse(float* d, int tokens, const float* floats, const uint32_t* a, uint64_t b,
                         const uint32_t* metadata, int half, simt::Place place,
                         SparseRows rows_of = sparse_rows,
                         void (*add)(const simt::Product&, float*) = add_sparse_wgmma) {
  simt::Product product{read_sparse_operands, tokens, floats, d, place};
  {
    const simt::sanitizers::Unwatched unwatched;
    check_wgmma_begun(place);
    product.add = add;
    product.b = check_sparse_operand(b, tokens, place);
    product.registers = a;
    std::memcpy(product.given, a, sizeof product.given);
    product.metadata = metadata;
    product.given_metadata = *metadata;
    simt::warpgroup_collective("wgmma_sparse", place, product, [&](simt::Product* const* all) {
      for (unsigned i = 0; i < simt::kWarpgroup * simt::kWarpSize; ++i) {
        check_same_wgmma(product, *all[i]);
        all[i]->rows = rows_of(all, i, half);
      }
      for (int i = 0; i < tokens * kSparseDepth; i += 8)
        check_wgmma_fence(wgmma_address(product.b, i / kSparseDepth, i % kSparseDepth), place);
    });
  }
  start_wgmma(product);
}

}  // namespace detail

template <class Type, int tokens, int half>
void wgmma_sparse(float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b,
                  const uint32_t& metadata, simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<tokens>, "as for the GPU");
  static_assert(half == 0 || half == 1, "as for the GPU");
  static_assert(std::is_same_v<Type, Float16> || std::is_same_v<Type, BFloat16>, "as for the GPU");
  detail::issue_sparse(d, tokens, detail::kFloats<Type>.data(), a, b, &metadata, half, place);
}

template <int tokens>
void wgmma_sparse_fp8(float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b,
                      const uint32_t& metadata, simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<tokens>, "as for the GPU");
  detail::issue_sparse(d, tokens, detail::kFp8Floats.data(), a, b, &metadata, 0, place,
                       detail::sparse_code_rows, detail::add_sparse_fp8_wgmma);
}

template <int tokens>
void wgmma_sparse_int8(int32_t (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b,
                       const uint32_t& metadata, simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<tokens>, "as for the GPU");
  detail::issue_sparse(reinterpret_cast<float*>(d), tokens, nullptr, a, b, &metadata, 0, place,
                       detail::sparse_code_rows, detail::add_sparse_int8_wgmma);
}

#endif

}  // namespace flashsparse
