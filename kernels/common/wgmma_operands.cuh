// SPDX-License-Identifier: Apache-2.0
// The operands of wgmma as inline PTX has to list them. For N columns (tokens) a thread has N / 2
// accumulators. Then come A, four registers or a descriptor, the descriptor of B, and the metadata
// of a sparse A. The hardware takes any multiple of 8 as N; here are those that tiles have.
//   FS_WGMMA_WIDTHS(X, ...)    X(N, ...) for each N from 64 on
//   FS_WGMMA_SHARED_N          the text of accumulators, A and B for A in shared memory
//   FS_WGMMA_OPERANDS_N        the same for A in registers
//   FS_WGMMA_METADATA_N        the text of the metadata
//   FS_WGMMA_SUMS_N(kind)      the accumulators d[] as operands of this kind: "f" or "r"
#pragma once

#define FS_WGMMA_WIDTHS(X, ...) \
  X(32, __VA_ARGS__)            \
  X(64, __VA_ARGS__)            \
  X(80, __VA_ARGS__)            \
  X(96, __VA_ARGS__)            \
  X(128, __VA_ARGS__)           \
  X(144, __VA_ARGS__)           \
  X(160, __VA_ARGS__)           \
  X(192, __VA_ARGS__)           \
  X(224, __VA_ARGS__)           \
  X(256, __VA_ARGS__)

namespace flashsparse {

#define FS_WGMMA_IS(N, tokens) || tokens == N
template <int tokens>
inline constexpr bool kIsWgmmaWidth = false FS_WGMMA_WIDTHS(FS_WGMMA_IS, tokens);
#undef FS_WGMMA_IS

}  // namespace flashsparse

#ifdef __CUDACC__

#define FS_WGMMA_LIST_8 "%0, %1, %2, %3"
#define FS_WGMMA_LIST_16 \
  FS_WGMMA_LIST_8        \
  ", %4, %5, %6, %7"
#define FS_WGMMA_LIST_32 \
  FS_WGMMA_LIST_16       \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FS_WGMMA_LIST_64 \
  FS_WGMMA_LIST_32       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FS_WGMMA_LIST_80 \
  FS_WGMMA_LIST_64       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FS_WGMMA_LIST_96 \
  FS_WGMMA_LIST_80       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FS_WGMMA_LIST_128 \
  FS_WGMMA_LIST_96        \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FS_WGMMA_LIST_144 \
  FS_WGMMA_LIST_128       \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FS_WGMMA_LIST_160 \
  FS_WGMMA_LIST_144       \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FS_WGMMA_LIST_192 \
  FS_WGMMA_LIST_160       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FS_WGMMA_LIST_224                                                                  \
  FS_WGMMA_LIST_192                                                                        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110" \
  ", %111"
#define FS_WGMMA_LIST_256                                                                      \
  FS_WGMMA_LIST_224                                                                            \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126" \
  ", %127"

#define FS_WGMMA_SHARED_8 "{" FS_WGMMA_LIST_8 "}, %4, %5"
#define FS_WGMMA_SHARED_16 "{" FS_WGMMA_LIST_16 "}, %8, %9"
#define FS_WGMMA_SHARED_32 "{" FS_WGMMA_LIST_32 "}, %16, %17"
#define FS_WGMMA_SHARED_64 "{" FS_WGMMA_LIST_64 "}, %32, %33"
#define FS_WGMMA_SHARED_96 "{" FS_WGMMA_LIST_96 "}, %48, %49"
#define FS_WGMMA_SHARED_128 "{" FS_WGMMA_LIST_128 "}, %64, %65"

#define FS_WGMMA_OPERANDS_32 "{" FS_WGMMA_LIST_32 "}, {%16, %17, %18, %19}, %20"
#define FS_WGMMA_OPERANDS_64 "{" FS_WGMMA_LIST_64 "}, {%32, %33, %34, %35}, %36"
#define FS_WGMMA_OPERANDS_80 "{" FS_WGMMA_LIST_80 "}, {%40, %41, %42, %43}, %44"
#define FS_WGMMA_OPERANDS_96 "{" FS_WGMMA_LIST_96 "}, {%48, %49, %50, %51}, %52"
#define FS_WGMMA_OPERANDS_128 "{" FS_WGMMA_LIST_128 "}, {%64, %65, %66, %67}, %68"
#define FS_WGMMA_OPERANDS_144 "{" FS_WGMMA_LIST_144 "}, {%72, %73, %74, %75}, %76"
#define FS_WGMMA_OPERANDS_160 "{" FS_WGMMA_LIST_160 "}, {%80, %81, %82, %83}, %84"
#define FS_WGMMA_OPERANDS_192 "{" FS_WGMMA_LIST_192 "}, {%96, %97, %98, %99}, %100"
#define FS_WGMMA_OPERANDS_224 "{" FS_WGMMA_LIST_224 "}, {%112, %113, %114, %115}, %116"
#define FS_WGMMA_OPERANDS_256 "{" FS_WGMMA_LIST_256 "}, {%128, %129, %130, %131}, %132"

#define FS_WGMMA_METADATA_32 "%21"
#define FS_WGMMA_METADATA_64 "%37"
#define FS_WGMMA_METADATA_80 "%45"
#define FS_WGMMA_METADATA_96 "%53"
#define FS_WGMMA_METADATA_128 "%69"
#define FS_WGMMA_METADATA_144 "%77"
#define FS_WGMMA_METADATA_160 "%85"
#define FS_WGMMA_METADATA_192 "%101"
#define FS_WGMMA_METADATA_224 "%117"
#define FS_WGMMA_METADATA_256 "%133"

#define FS_WGMMA_D4(kind, i) \
  "+" kind(d[i]), "+" kind(d[i + 1]), "+" kind(d[i + 2]), "+" kind(d[i + 3])
#define FS_WGMMA_D8(kind, i) FS_WGMMA_D4(kind, i), FS_WGMMA_D4(kind, i + 4)
#define FS_WGMMA_D16(kind, i) FS_WGMMA_D8(kind, i), FS_WGMMA_D8(kind, i + 8)
#define FS_WGMMA_SUMS_8(kind) FS_WGMMA_D4(kind, 0)
#define FS_WGMMA_SUMS_16(kind) FS_WGMMA_D8(kind, 0)
#define FS_WGMMA_SUMS_32(kind) FS_WGMMA_D16(kind, 0)
#define FS_WGMMA_SUMS_64(kind) FS_WGMMA_SUMS_32(kind), FS_WGMMA_D16(kind, 16)
#define FS_WGMMA_SUMS_80(kind) FS_WGMMA_SUMS_64(kind), FS_WGMMA_D8(kind, 32)
#define FS_WGMMA_SUMS_96(kind) FS_WGMMA_SUMS_80(kind), FS_WGMMA_D8(kind, 40)
#define FS_WGMMA_SUMS_128(kind) FS_WGMMA_SUMS_96(kind), FS_WGMMA_D16(kind, 48)
#define FS_WGMMA_SUMS_144(kind) FS_WGMMA_SUMS_128(kind), FS_WGMMA_D8(kind, 64)
#define FS_WGMMA_SUMS_160(kind) FS_WGMMA_SUMS_144(kind), FS_WGMMA_D8(kind, 72)
#define FS_WGMMA_SUMS_192(kind) FS_WGMMA_SUMS_160(kind), FS_WGMMA_D16(kind, 80)
#define FS_WGMMA_SUMS_224(kind) FS_WGMMA_SUMS_192(kind), FS_WGMMA_D16(kind, 96)
#define FS_WGMMA_SUMS_256(kind) FS_WGMMA_SUMS_224(kind), FS_WGMMA_D16(kind, 112)

#endif
