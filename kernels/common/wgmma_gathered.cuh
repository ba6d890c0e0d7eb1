// SPDX-License-Identifier: Apache-2.0
// wgmma with A in registers, and B from gathered rows in shared memory: a row is one k, with
// adjacent columns ("MN-major").
//
// B is stored in slabs of 64 columns, one after the other. A row of a slab is 128 bytes, whose
// 16-byte chunks are XOR-swizzled by the row modulo 8; slabs are 1024-byte aligned. PTX ISA,
// "Shared Memory Matrix Layout": in the canonical layout of 128-byte swizzle, the leading dimension
// offset is from 64 columns to the next 64, and the stride dimension offset from 8 rows to the next
// 8.
#pragma once
#include "common/host_device.h"
#include "common/wgmma.cuh"
#include "common/wgmma_operands.cuh"

namespace flashsparse {

inline constexpr int kSlabColumns = 64;
inline constexpr uint32_t kSlabRowBytes = kSlabColumns * sizeof(uint16_t);

// Address of 16-byte chunk `chunk` of a row.
FS_HOST_DEVICE constexpr uint32_t slab_place(uint32_t slab, int row, int chunk) {
  return slab + row * kSlabRowBytes + (chunk ^ row % 8) * 16;
}

namespace detail {

// Descriptor of slabs of `rows` rows, a multiple of 8, of which the first begins at a shared
// address, a multiple of 1024.
FS_HOST_DEVICE constexpr uint64_t gathered_operand(uint32_t address, uint32_t rows) {
  const uint64_t slab = rows * kSlabRowBytes, eight_rows = 8 * kSlabRowBytes;
  return uint64_t{1} << 62 | eight_rows >> 4 << 32 | slab >> 4 << 16 | (address & 0x3ffff) >> 4;
}

}  // namespace detail

#ifdef __CUDACC__

// Descriptor of 16 rows of slabs of `rows` rows; the first begins at a shared address, a multiple
// of 1024.
template <int rows>
__device__ __forceinline__ uint64_t gathered_operand(uint32_t address) {
  static_assert(rows % 8 == 0, "whole swizzles");
  return detail::gathered_operand(address, rows);
}

// d [64, columns] += a [64, 16] times b [16, columns]. `a` is a warp's A of mma m16n8k16, where
// warp w of the warpgroup has rows 16 w to 16 w + 15; d is as for wgmma. `a` must not change until
// the group has ended. kIsWgmmaWidth<columns>.
template <class Type, int columns>
__device__ __forceinline__ void wgmma_gathered(float (&d)[columns / 2], const uint32_t (&a)[4],
                                               uint64_t b);

#define FS_WGMMA(columns, Type, name)                                                  \
  template <>                                                                          \
  __device__ __forceinline__ void wgmma_gathered<Type, columns>(                       \
      float (&d)[columns / 2], const uint32_t (&a)[4], uint64_t b) {                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." name "." name \
                 " " FS_WGMMA_OPERANDS_##columns ", 1, 1, 1, 1;"                       \
                 : FS_WGMMA_SUMS_##columns("f")                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                \
  }
FS_WGMMA_WIDTHS(FS_WGMMA, Float16, "f16")
FS_WGMMA_WIDTHS(FS_WGMMA, BFloat16, "bf16")
#undef FS_WGMMA

#else

template <int rows>
uint64_t gathered_operand(uint32_t address, simt::Place place = simt::Place::here()) {
  static_assert(rows % 8 == 0, "whole swizzles");
  if (address >> 18)
    simt::fail("gathered_operand(%#x): an address of more than 18 bits (%s:%d)", address,
               place.file_name(), place.line);
  return detail::gathered_operand(address, rows);
}

namespace detail {

// Address of an element of B in the operand that begins at a shared address.
SIMT_UNWATCHED inline uint32_t gathered_address(uint32_t operand, uint32_t slab, int k,
                                                int column) {
  constexpr uint32_t kEightRows = 8 * kSlabRowBytes;
  const uint32_t plain = operand + column / kSlabColumns * slab + k / 8 * kEightRows +
                         k % 8 * kSlabRowBytes + column % kSlabColumns * sizeof(uint16_t);
  return plain ^ (plain / kSlabRowBytes % 8) << 4;
}

// Sets address and slab of B from its descriptor. The hardware does not report wrong descriptors.
inline void check_gathered_operand(uint64_t operand, simt::Product& product) {
  constexpr uint32_t kSwizzle = 8 * kSlabRowBytes;
  product.b = (operand & 0x3fff) << 4;
  product.slab = (operand >> 16 & 0x3fff) << 4;
  const uint32_t bytes =
      (product.tokens / kSlabColumns - 1) * product.slab + kWgmmaDepth * kSlabRowBytes;
  const char* wrong = nullptr;
  if (operand != gathered_operand(product.b, product.slab / kSlabRowBytes))
    wrong = "no operand that gathered_operand describes";
  if (product.b % kSwizzle != 0 || product.slab % kSwizzle != 0) wrong = "not on 1024 bytes";
  if (product.slab < kWgmmaDepth * kSlabRowBytes) wrong = "slabs of fewer than 16 rows";
  if (!simt::current->block->shared.at(product.b, bytes)) wrong = "out of bounds";
  if (wrong)
    simt::fail("B of wgmma_gathered, %d columns, descriptor %#llx, shared address %#x: %s (%s:%d)",
               product.tokens, static_cast<unsigned long long>(operand), product.b, wrong,
               product.place.file_name(), product.place.line);
}

// Checks that the warp's registers still hold A, and reads B from shared memory.
inline std::vector<uint16_t> read_gathered_operands(const simt::Product& product) {
  {
    const simt::sanitizers::Unwatched unwatched;
    if (std::memcmp(product.registers, product.given, sizeof product.given) != 0)
      simt::fail("the registers of a wgmma (%s:%d) were overwritten before its wgmma_wait",
                 product.place.file_name(), product.place.line);
  }
  uint16_t operands[(2 + kMostWgmmaTokens / 4) * kWgmmaDepth];  // see read_wgmma_operands
  const int count = (2 + product.tokens / 4) * kWgmmaDepth;
  std::memcpy(operands, product.rows.data(), 2 * kWgmmaDepth * sizeof(uint16_t));
  const unsigned char* const shared = simt::dynamic_shared();
  const int lane = simt::current->lane;
  for (int pair = 0; pair < product.tokens / 8; ++pair) {
    for (int k = 0; k < kWgmmaDepth; ++k) {
      const uint32_t address =
          gathered_address(product.b, product.slab, k, pair * 8 + lane % 4 * 2);
      const uint32_t two = *reinterpret_cast<const uint32_t*>(shared + address);
      operands[(2 + pair * 2) * kWgmmaDepth + k] = static_cast<uint16_t>(two);
      operands[(3 + pair * 2) * kWgmmaDepth + k] = static_cast<uint16_t>(two >> 16);
    }
  }
  return {operands, operands + count};
}

// The rows of A that a thread's accumulators need, from the four lanes that hold them.
SIMT_UNWATCHED inline std::vector<uint16_t> gathered_rows(simt::Product* const* all,
                                                          unsigned thread) {
  uint16_t rows[2 * kWgmmaDepth];
  for (int k = 0; k < kWgmmaDepth; ++k) {
    const simt::Product& holder = *all[thread / 4 * 4 + k % 8 / 2];
    for (int row = 0; row < 2; ++row)
      rows[row * kWgmmaDepth + k] = holder.given[k / 8 * 2 + row] >> k % 2 * 16;
  }
  return {rows, rows + 2 * kWgmmaDepth};
}

inline void issue_gathered(float* d, int columns, const float* floats, const uint32_t* a,
                           uint64_t b, simt::Place place) {
  simt::Product product{read_gathered_operands, columns, floats, d, place};
  {
    const simt::sanitizers::Unwatched unwatched;
    check_wgmma_begun(place);
    check_gathered_operand(b, product);
    product.registers = a;
    std::memcpy(product.given, a, sizeof product.given);
    simt::warpgroup_collective("wgmma_gathered", place, product, [&](simt::Product* const* all) {
      for (unsigned i = 0; i < simt::kWarpgroup * simt::kWarpSize; ++i) {
        check_same_wgmma(product, *all[i]);
        all[i]->rows = gathered_rows(all, i);
      }
      for (int i = 0; i < kWgmmaDepth * columns; ++i)
        check_wgmma_fence(gathered_address(product.b, product.slab, i / columns, i % columns),
                          place);
    });
  }
  start_wgmma(product);
}

}  // namespace detail

template <class Type, int columns>
void wgmma_gathered(float (&d)[columns / 2], const uint32_t (&a)[4], uint64_t b,
                    simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<columns>, "as for the GPU");
  static_assert(std::is_same_v<Type, Float16> || std::is_same_v<Type, BFloat16>, "as for the GPU");
  detail::issue_gathered(d, columns, detail::kFloats<Type>.data(), a, b, place);
}

#endif

}  // namespace flashsparse
