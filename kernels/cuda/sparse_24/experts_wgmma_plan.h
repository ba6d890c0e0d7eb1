// SPDX-License-Identifier: Apache-2.0
// How sparse_24's grouped kernel by wgmma (experts_wgmma.cuh) divides a product of a mixture's
// experts: decided on the host from sizes alone, so that a CUDA graph can hold the decision for any
// routing. Tiles and clusters: cuda/mma_units/wgmma_shape.h. A cluster has whole tiles, so each sum
// is made in the same order whatever the batch.
#pragma once
#include <cstdint>

#include "cuda/plan/kernel.h"
#include "cuda/plan/priced.h"
#include "cuda/sparse_24/experts_plan.h"
#include "cuda/sparse_24/wgmma_plan.h"

namespace flashsparse::sparse_24 {

// The compiled shapes, as in FS_SPARSE_24_WGMMA_SHAPES. The number of tokens is that of slots in a
// block of slots. On an H200 (experts_launches_shapes.csv) 256 tokens were up to 4% faster than 192
// in three of 18 products and up to 21% slower in the others, and 128 tokens of int8 1% faster than
// 64 or 192 in one of 12.
#define FS_SPARSE_24_EXPERTS_WGMMA_SHAPES(X) \
  X(64, 3, 16 | 4)                           \
  X(64, 4, 8)                                \
  X(128, 2, 16)                              \
  X(192, 2, 16 | 8 | 4)

#define FS_SPARSE_24_EXPERTS_WGMMA_INFO(tokens, groups, bits) {{tokens, groups}, 1, bits},
inline constexpr WgmmaShapeInfo kExpertsWgmmaShapes[] = {
    FS_SPARSE_24_EXPERTS_WGMMA_SHAPES(FS_SPARSE_24_EXPERTS_WGMMA_INFO)};
#undef FS_SPARSE_24_EXPERTS_WGMMA_INFO
inline constexpr int kExpertsWgmmaShapeCount =
    sizeof kExpertsWgmmaShapes / sizeof kExpertsWgmmaShapes[0];

struct ExpertsWgmmaPlan {
  int shape;     // index into kExpertsWgmmaShapes
  int down;      // blocks of a cluster, along the rows: 1, 2, 4 or 8
  int stages;    // of x, in shared memory: panels
  int clusters;  // of the launch
  bool gated = false;

  const WgmmaShapeInfo& info() const { return kExpertsWgmmaShapes[shape]; }
  int cluster() const { return down; }
  int blocks() const { return down * clusters; }
  int threads() const { return wgmma_threads(info()); }
  int copied_tokens() const { return info().tokens / down; }  // of x, by a block
  int64_t shared_bytes() const;
  // Of an expert.
  int64_t row_tiles(const ExpertsProduct& product) const {
    const int64_t units = int64_t{down} * info().groups * (mma_units::kGroupRows / kUnitRows);
    return (product.expert_unit_rows() + units - 1) / units;
  }

  // The rule that the plan breaks for a product, or null. A launch needs null.
  const char* broken_rule(const ExpertsProduct& product, const Gpu& gpu) const;
};

// A layer by this kernel.
PricedLayer price_experts_wgmma_layer(const ExpertsProduct& up, const ExpertsProduct& down,
                                      const Gpu& gpu);

// The launch for a product and its cost in microseconds on average over routings that choose each
// expert as often; then every launch that it was compared with.
Priced<ExpertsWgmmaPlan> price_experts_wgmma(const ExpertsProduct& product, int shape,
                                             const Gpu& gpu);
std::vector<Priced<ExpertsWgmmaPlan>> list_experts_wgmma(const ExpertsProduct& product, int shape,
                                                         const Gpu& gpu);

// Which kernel multiplies a layer: kFew (experts.cuh) or kMany (experts_wgmma.cuh).
Kernel choose_experts_kernel(const ExpertsProduct& up, const ExpertsProduct& down, const Gpu& gpu);

}  // namespace flashsparse::sparse_24
