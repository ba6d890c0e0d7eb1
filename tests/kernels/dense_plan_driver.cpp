// SPDX-License-Identifier: Apache-2.0
// Tells what the kernels of dense layers are compiled for and how their work is cut;
// test_cuda_dense_plan.py asks. Without arguments, a line for each compiled shape:
//   gemv tokens rows blocks, threads, bytes of shared memory
// For rows, cols, tokens, aligned, multiprocessors and bytes of shared memory on each line of
// stdin, the plans:
//   shape and split of flat_gemm, row blocks, floats of partial sums, the most parts; shape of gemv
//   (-1 where there are too many tokens for it)
#include <cstdio>

#include "cuda/dense/flat_gemm.cuh"
#include "cuda/dense/gemv.cuh"

using namespace flashsparse::dense;

namespace {

void print_shapes() {
  for (int i = 0; i < kFlatShapeCount; ++i) {
    const FlatShapeInfo& info = kFlatShapes[i];
    std::printf("0 %d %d %d %d %u\n", info.tokens, info.rows(), info.blocks,
                kCompiledFlat[i].threads, kCompiledFlat[i].shared_bytes);
  }
  for (int i = 0; i < kGemvShapeCount; ++i) {
    const GemvShapeInfo& info = kGemvShapes[i];
    std::printf("1 %d %d %d %d %u\n", info.tokens, info.rows(), info.blocks,
                kCompiledGemv[i].threads, kCompiledGemv[i].shared_bytes);
  }
}

}  // namespace

int main(int argc, char**) {
  if (argc == 1) {
    print_shapes();
    return 0;
  }
  long long rows, cols, tokens, shared;
  int aligned, multiprocessors;
  while (std::scanf("%lld %lld %lld %d %d %lld", &rows, &cols, &tokens, &aligned, &multiprocessors,
                    &shared) == 6) {
    const flashsparse::Gpu gpu{multiprocessors, shared};
    const FlatPlan plan = plan_flat_gemm(rows, cols, tokens, aligned != 0, gpu);
    const bool few = tokens <= max_gemv_tokens(aligned != 0);
    std::printf("%d %d %lld %lld %d %d\n", plan.shape, plan.split,
                static_cast<long long>(plan.row_blocks(rows)),
                static_cast<long long>(plan.partial_floats(rows)),
                max_split(plan.shape, rows, cols),
                few ? plan_gemv(rows, tokens, aligned != 0, multiprocessors) : -1);
  }
}
