// SPDX-License-Identifier: Apache-2.0
// Arguments of the grouped products by wgmma, besides the tensor map of x.
#pragma once
#include "cuda/experts/arguments.h"
#include "cuda/experts/routing.h"
#include "cuda/mma_units/wgmma_arguments.h"
#include "cuda/shared/divider.h"

namespace flashsparse::experts {

// As of one product (mma_units), of all experts: `units` and `scales` are those of one expert after
// the other, unit_rows those of one, and `bias` is as in experts::Arguments. x and y have a row for
// each place in the order, [most_slots]. y has y_stride columns, rows rounded up to a multiple of
// 8, and is zero past the last row of the weight.
struct WgmmaArguments : mma_units::WgmmaArguments {
  Order order;           // of blocks of as many slots as a tile has tokens
  const float* weights;  // of places, or null: multiply sums before bias if gated, else after it
  int slots, y_stride;
  int row_tiles;  // of an expert
  bool gated;
  Activation activation;
  Divider by_row_tiles{1};

  template <class Plan, class Product>
  void cut(const Plan& plan, const Product& product) {
    down = plan.down;
    depth = 1;
    stages = plan.stages;
    clusters = plan.clusters;
    unit_rows = static_cast<int>(product.expert_unit_rows());
    unit_cols = static_cast<int>(mma_units::unit_cols(product.cols));
    row_tiles = static_cast<int>(plan.row_tiles(product));
    by_cluster = Divider(down);
    by_row_tiles = Divider(row_tiles);
  }
};

}  // namespace flashsparse::experts
