// SPDX-License-Identifier: Apache-2.0
// Tells what the linear kernel is compiled for and how its work is cut; test_cuda_linear_plan.py
// asks. Without arguments, a line for each compiled shape:
//   tokens hopper wgmma team_warps held warps blocks, threads, bytes of shared memory
// With rows, cols, tokens, words, multiprocessors and hopper, the plan, and what comes of it:
//   shape, blocks, tiles whose block is not the one that has them, the first tile of each piece,
//   and the number of tiles
#include <cstdio>
#include <cstdlib>

#include "cuda/tiled_csl/linear.cuh"

using flashsparse::Gpu;
using namespace flashsparse::linear;
using namespace flashsparse::tiled_csl;

namespace {

void print_shape(const LinearShapeInfo& info, const Compiled<Words>& compiled) {
  std::printf("%d %d %d %d %d %d %d %d %u\n", info.tokens, info.hopper, info.wgmma, info.team_warps,
              info.held, info.warps, info.blocks, compiled.threads, compiled.shared_bytes);
}

void print_shapes() {
  for (int i = 0; i < kLinearShapeCount; ++i) print_shape(kLinearShapes[i], kCompiledLinear[i]);
}

void print_plan(const long long (&asked)[6]) {
  const auto [rows, cols, tokens, words, multiprocessors, hopper] = asked;
  const Gpu gpu{static_cast<int>(multiprocessors), 227 << 10, hopper != 0 ? 9 : 8};
  const LinearPlan plan = plan_linear(rows, cols, tokens, words, gpu);
  const int64_t tiles = flashsparse::linear::tile_rows(rows) * flashsparse::linear::tile_cols(cols);
  int misplaced = 0;
  for (int block = 0; block < plan.blocks; ++block) {
    const int end = first_tile(tiles, block + 1, plan.blocks);
    for (int tile = first_tile(tiles, block, plan.blocks); tile < end; ++tile) {
      misplaced += block_of_tile(tiles, tile, plan.blocks) != block;
    }
  }
  std::printf("%d %d %d", plan.shape, plan.blocks, misplaced);
  for (int block = 0; block <= plan.blocks; ++block) {
    std::printf(" %d", first_tile(tiles, block, plan.blocks));
  }
  std::printf(" %lld\n", static_cast<long long>(tiles));
}

}  // namespace

int main(int argc, char** argv) {
  long long asked[6];
  if (argc == 1) print_shapes();
  if (argc != 7) return argc != 1;
  for (int i = 0; i < 6; ++i) asked[i] = std::atoll(argv[i + 1]);
  print_plan(asked);
}
