// SPDX-License-Identifier: Apache-2.0
// The compiled shapes of the linear kernel for Tiled-CSL.
#pragma once
#include "cuda/tiled_csl/linear_kernel.cuh"
#include "cuda/tiled_csl/linear_plan.h"
#include "cuda/tiled_csl/tile_source.cuh"

namespace flashsparse::tiled_csl {

static_assert(kChunk == kTailWords);

#define FS_COMPILED(tokens, hopper, wgmma, team_warps, held, warps, blocks) \
  linear::compiled<                                                         \
      TileSource<linear::Shape<tokens, hopper, wgmma, team_warps, warps, blocks>, held>>(),
// Indexed like kLinearShapes.
inline const linear::Compiled<Words> kCompiledLinear[] = {FS_LINEAR_SHAPES(FS_COMPILED)};
#undef FS_COMPILED

}  // namespace flashsparse::tiled_csl
