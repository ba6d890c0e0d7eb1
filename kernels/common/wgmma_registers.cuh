// SPDX-License-Identifier: Apache-2.0
// wgmma with A in registers, and B from a K-major tile in shared memory (wgmma.cuh): a warp that
// computes its 16 rows of A need not store them to shared memory.
#pragma once
#include "common/wgmma.cuh"
#include "common/wgmma_gathered.cuh"
#include "common/wgmma_operands.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// d [64, tokens] += a [64, 16] times b [tokens, 16] transposed. `a` is a warp's A of mma m16n8k16,
// where warp w of the warpgroup has rows 16 w to 16 w + 15; d and b are as for wgmma. `a` must not
// change until the group has ended. kIsWgmmaWidth<tokens>.
template <class Type, int tokens>
__device__ __forceinline__ void wgmma_registers(float (&d)[tokens / 2], const uint32_t (&a)[4],
                                                uint64_t b);

// d [64, tokens] += a [64, 32] times b [tokens, 32] transposed, all of int8; exact if the sums fit
// in 32 bits. `a` is a warp's A of mma m16n8k32.
template <int tokens>
__device__ __forceinline__ void wgmma_registers_int8(int32_t (&d)[tokens / 2],
                                                     const uint32_t (&a)[4], uint64_t b);

#define FS_WGMMA(tokens, Type, name)                                                  \
  template <>                                                                         \
  __device__ __forceinline__ void wgmma_registers<Type, tokens>(                      \
      float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b) {                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32." name "." name \
                 " " FS_WGMMA_OPERANDS_##tokens ", 1, 1, 1, 0;"                       \
                 : FS_WGMMA_SUMS_##tokens("f")                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));               \
  }
FS_WGMMA_WIDTHS(FS_WGMMA, Float16, "f16")
FS_WGMMA_WIDTHS(FS_WGMMA, BFloat16, "bf16")
#undef FS_WGMMA

#define FS_WGMMA(tokens, ...)                                           \
  template <>                                                           \
  __device__ __forceinline__ void wgmma_registers_int8<tokens>(         \
      int32_t (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b) {   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens            \
                 "k32.s32.s8.s8"                                        \
                 " " FS_WGMMA_OPERANDS_##tokens ", 1;"                  \
                 : FS_WGMMA_SUMS_##tokens("r")                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }
FS_WGMMA_WIDTHS(FS_WGMMA, )
#undef FS_WGMMA

#else

namespace detail {

// Checks that the warp's registers still hold A, and reads B from shared memory.
inline std::vector<uint16_t> read_register_operands(const simt::Product& product) {
  {
    const simt::sanitizers::Unwatched unwatched;
    if (std::memcmp(product.registers, product.given, sizeof product.given) != 0)
      simt::fail("the registers of a wgmma (%s:%d) were overwritten before its wgmma_wait",
                 product.place.file_name(), product.place.line);
  }
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  uint16_t operands[(2 + kMostWgmmaTokens / 4) * kWgmmaDepth];  // see read_wgmma_operands
  const int count = (2 + product.tokens / 4) * kWgmmaDepth;
  std::memcpy(operands, product.rows.data(), 2 * kWgmmaDepth * sizeof(uint16_t));
  const unsigned char* const shared = simt::dynamic_shared();
  const int lane = simt::current->lane;
  for (int i = 2 * kWgmmaDepth; i < count; i += kChunk) {
    const int token = i / kWgmmaDepth - 2, k = i % kWgmmaDepth;
    const uint4 chunk = *reinterpret_cast<const uint4*>(
        shared + wgmma_address(product.b, token / 2 * 8 + lane % 4 * 2 + token % 2, k));
    std::memcpy(&operands[i], &chunk, sizeof chunk);
  }
  return {operands, operands + count};
}

// Two 8-bit elements lie where one of 16 bits would.
SIMT_UNWATCHED inline void add_int8_wgmma(const simt::Product& product, float* sums) {
  const auto byte = [](const uint16_t* row, int k) SIMT_UNWATCHED {
    return int{static_cast<int8_t>(row[k / 2] >> k % 2 * 8)};
  };
  for (int i = 0; i < product.tokens / 2; ++i) {
    const uint16_t* const row = product.operands.data() + i / 2 % 2 * kWgmmaDepth;
    const uint16_t* const column = product.operands.data() + (2 + i / 4 * 2 + i % 2) * kWgmmaDepth;
    int32_t sum = 0;
    std::memcpy(&sum, sums + i, sizeof sum);
    for (int k = 0; k < 2 * kWgmmaDepth; ++k) {
      if (__builtin_add_overflow(sum, byte(row, k) * byte(column, k), &sum))
        simt::fail("an int32 sum of a wgmma overflows (%s:%d)", product.place.file_name(),
                   product.place.line);
    }
    std::memcpy(sums + i, &sum, sizeof sum);
  }
}

inline void issue_registers(float* d, int tokens, const float* floats, const uint32_t* a,
                            uint64_t b, simt::Place place,
                            void (*add)(const simt::Product&, float*) = nullptr) {
  simt::Product product{read_register_operands, tokens, floats, d, place};
  {
    const simt::sanitizers::Unwatched unwatched;
    check_wgmma_begun(place);
    product.add = add;
    product.b = check_wgmma_operand(b, tokens, "B", place);
    product.registers = a;
    std::memcpy(product.given, a, sizeof product.given);
    simt::warpgroup_collective("wgmma_registers", place, product, [&](simt::Product* const* all) {
      for (unsigned i = 0; i < simt::kWarpgroup * simt::kWarpSize; ++i) {
        check_same_wgmma(product, *all[i]);
        all[i]->rows = gathered_rows(all, i);
      }
      check_wgmma_fences(product.b, tokens, place);
    });
  }
  start_wgmma(product);
}

}  // namespace detail

template <class Type, int tokens>
void wgmma_registers(float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b,
                     simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<tokens>, "as for the GPU");
  static_assert(std::is_same_v<Type, Float16> || std::is_same_v<Type, BFloat16>, "as for the GPU");
  detail::issue_registers(d, tokens, detail::kFloats<Type>.data(), a, b, place);
}

template <int tokens>
void wgmma_registers_int8(int32_t (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b,
                          simt::Place place = simt::Place::here()) {
  static_assert(kIsWgmmaWidth<tokens>, "as for the GPU");
  detail::issue_registers(reinterpret_cast<float*>(d), tokens, nullptr, a, b, place,
                          detail::add_int8_wgmma);
}

#endif

}  // namespace flashsparse
