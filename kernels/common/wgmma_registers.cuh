// SPDX-License-Identifier: Apache-2.0
// wgmma of which A comes from registers, and B from a K-major tile in shared memory (wgmma.cuh): a
// warp that makes its own 16 rows of A need not store them for the hardware to read.
#pragma once
#include "common/wgmma.cuh"
#include "common/wgmma_gathered.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// d [64, tokens] += a [64, 16] times b [tokens, 16] transposed: `a` as a warp's A of mma m16n8k16,
// warp w of the warpgroup having rows 16 w to 16 w + 15; d and b as wgmma has them. `a` must stay
// as it is until the batch is done. tokens is 64, 128, 192 or 256.
template <class Type, int tokens>
__device__ __forceinline__ void wgmma_registers(float (&d)[tokens / 2], const uint32_t (&a)[4],
                                                uint64_t b);

#define FS_WGMMA(Type, name, tokens, list, a0, a1, a2, a3, right, ...)                          \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma_registers<Type, tokens>(                                \
      float (&d)[tokens / 2], const uint32_t (&a)[4], uint64_t b) {                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32." name "." name " {" list \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #right ", 1, 1, 1, 0;"        \
                 : __VA_ARGS__                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                         \
  }
#define FS_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FS_D16(i) FS_D4(i), FS_D4(i + 4), FS_D4(i + 8), FS_D4(i + 12)
#define FS_D32(i) FS_D16(i), FS_D16(i + 16)
#define FS_L32                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FS_L64                                                                                   \
  FS_L32                                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FS_L96                                                                         \
  FS_L64                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FS_L128                                                                                \
  FS_L96                                                                                       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"
#define FS_WGMMA_TYPE(Type, name)                                                                \
  FS_WGMMA(Type, name, 64, FS_L32, 32, 33, 34, 35, 36, FS_D32(0))                                \
  FS_WGMMA(Type, name, 128, FS_L64, 64, 65, 66, 67, 68, FS_D32(0), FS_D32(32))                   \
  FS_WGMMA(Type, name, 192, FS_L96, 96, 97, 98, 99, 100, FS_D32(0), FS_D32(32), FS_D32(64))      \
  FS_WGMMA(Type, name, 256, FS_L128, 128, 129, 130, 131, 132, FS_D32(0), FS_D32(32), FS_D32(64), \
           FS_D32(96))
FS_WGMMA_TYPE(Float16, "f16")
FS_WGMMA_TYPE(BFloat16, "bf16")
#undef FS_WGMMA_TYPE
#undef FS_L128
#undef FS_L96
#undef FS_L64
#undef FS_L32
#undef FS_D32
#undef FS_D16
#undef FS_D4
#undef FS_WGMMA

#else

namespace detail {

// Of A what the warp's registers held, which must still be there; B from shared memory.
inline std::vector<uint16_t> read_register_operands(const simt::Product& product) {
  {
    const simt::sanitizers::Unwatched unwatched;
    if (std::memcmp(product.registers, product.given, sizeof product.given) != 0)
      simt::fail("the registers of a wgmma (%s:%d) were overwritten before its wgmma_wait",
                 product.place.file_name(), product.place.line);
  }
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  std::vector<uint16_t> operands = product.rows;
  operands.resize((2 + product.tokens / 4) * kWgmmaDepth);
  const unsigned char* const shared = simt::dynamic_shared();
  const int lane = simt::current->lane;
  for (size_t i = 2 * kWgmmaDepth; i < operands.size(); i += kChunk) {
    const int token = static_cast<int>(i) / kWgmmaDepth - 2, k = i % kWgmmaDepth;
    const uint4 chunk = *reinterpret_cast<const uint4*>(
        shared + wgmma_address(product.b, token / 2 * 8 + lane % 4 * 2 + token % 2, k));
    std::memcpy(&operands[i], &chunk, sizeof chunk);
  }
  return operands;
}

inline void issue_registers(float* d, int tokens, const float* floats, const uint32_t* a,
                            uint64_t b, simt::Place place) {
  simt::Product product{read_register_operands, tokens, floats, d, place};
  {
    const simt::sanitizers::Unwatched unwatched;
    check_wgmma_begun(place);
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
  static_assert(tokens == 64 || tokens == 128 || tokens == 192 || tokens == 256, "as for the GPU");
  static_assert(std::is_same_v<Type, Float16> || std::is_same_v<Type, BFloat16>, "as for the GPU");
  detail::issue_registers(d, tokens, detail::kFloats<Type>.data(), a, b, place);
}

#endif

}  // namespace flashsparse
