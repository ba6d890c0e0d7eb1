// SPDX-License-Identifier: Apache-2.0
// How tiled_bitmap's prefill kernel (wgmma) divides its work: decided on the host from sizes alone,
// so that a CUDA graph can hold the decision. Tiles, steps and clusters:
// cuda/mma_units/wgmma_shape.h. Besides the stages of x, shared memory holds a ring of weight lines
// for each warp that multiplies.
#pragma once
#include <cstdint>

#include "cuda/mma_units/wgmma_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "cuda/tiled_bitmap/operands.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// The compiled shapes: X(tokens of a tile, warpgroups that multiply).
#define FS_TILED_BITMAP_WGMMA_SHAPES(X) \
  X(64, 2)                              \
  X(64, 3)                              \
  X(96, 2)                              \
  X(96, 3)                              \
  X(128, 2)                             \
  X(128, 3)                             \
  X(144, 3)                             \
  X(160, 2)                             \
  X(192, 2)                             \
  X(224, 2)                             \
  X(256, 2)                             \
  X(80, 2)                              \
  X(80, 3)

#define FS_TILED_BITMAP_WGMMA_INFO(tokens, groups) {tokens, groups},
inline constexpr mma_units::WgmmaShapeInfo kWgmmaShapes[] = {
    FS_TILED_BITMAP_WGMMA_SHAPES(FS_TILED_BITMAP_WGMMA_INFO)};
#undef FS_TILED_BITMAP_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// Panels of x for a step: of 128 bytes of a token, 64 columns or, of int8, 128.
FS_HOST_DEVICE constexpr int wgmma_panels(Operands operands) {
  return kUnitCols * x_bytes(operands) / mma_units::kPanelBytes;
}

inline constexpr int kUnitsAhead = 4;  // 16x256 blocks that a warp has in shared memory at most
inline constexpr int kLeastRingLines = kMostLines + 3;  // a block, and what is read past its end
inline constexpr int kMostRingLines = 4 * kLeastRingLines;

struct WgmmaPlan : mma_units::WgmmaPlan<kWgmmaShapes> {
  int ring_lines;  // of each warp, in shared memory

  int threads() const { return (info().groups + 1) * 128; }
  int64_t warps() const { return int64_t{4} * info().groups; }  // that multiply
  // The partial sums of the other blocks along K reuse the memory of x and of the weights: at most
  // 128 KB, no more than two stages and the shortest rings of any shape.
  int64_t shared_bytes() const {
    return mma_units::kWgmmaBarriers + stages * mma_units::wgmma_stage_bytes(info().tokens) +
           warps() * ring_lines * kLineBytes;
  }

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 on a GPU with wgmma and `lines` of the whole weight, and its cost in
// microseconds; then every launch that it was compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                              const Gpu& gpu, Operands operands);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                                          const Gpu& gpu, Operands operands);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                            const Gpu& gpu, Operands operands) {
  return price_wgmma(rows, cols, tokens, lines, gpu, operands).launch;
}

// Estimated microseconds of a launch, fitted for comparing launches.
double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                  const Gpu& gpu, Operands operands);

}  // namespace flashsparse::tiled_bitmap
