// SPDX-License-Identifier: Apache-2.0
// y = x W^T for a vector-wise N:M weight in float32, on CUDA cores: NM-SpMM (Ma et al., 2025,
// section III). One kernel; its template arguments are the paper's steps:
//
//   V1  one stage, no packing  tiles of a block, a warp and a thread (Listings 1 and 2)
//   V2  one stage, packing     of x only the columns that the block's rows keep (Listing 3)
//   V3  pipelined              the next panel is copied while one is multiplied, and index and
//                              operands of the next entry are loaded meanwhile (Listing 4). Without
//                              packing all copies are started first, and the products hide them
//                              (Figure 5). With packing, where a copy takes more instructions, they
//                              are spread among the products, to hide the latency of these (Figure
//                              6)
#pragma once
#include "cuda/nm_spmm/multiply.cuh"
#include "cuda/nm_spmm/stage.cuh"
#include "cuda/nm_spmm/write_y.cuh"

namespace flashsparse::nm_spmm {

// Waits for all copies except those of the latest `groups` groups, of all threads.
template <int groups>
__device__ __forceinline__ void wait_copies() {
  copy_async_wait<groups>();
  __syncthreads();
}

// Not pipelined: copies, then products.
template <class Shape>
__device__ __forceinline__ void multiply_unpipelined(const Stager<Shape>& stager, Tile<Shape>& tile,
                                                     int panel, int end) {
  FS_NO_UNROLL
  for (; panel < end; ++panel) {
    if constexpr (Shape::kPacking) {
      stager.copy_list(panel);
      copy_async_commit();
      wait_copies<0>();
    }
    stager.copy(panel);
    copy_async_commit();
    wait_copies<0>();
    tile.multiply(stager.stage_of(panel), [](int) {});
    if constexpr (!Shape::kPacking) __syncthreads();  // else wait_copies follows
  }
}

// Pipelined: copies of the next panels overlap with products.
template <class Shape>
__device__ __forceinline__ void multiply_pipelined(const Stager<Shape>& stager, Tile<Shape>& tile,
                                                   int panel, int end) {
  constexpr int kAhead = Shape::kStages - 1;
  if constexpr (Shape::kPacking) {
    static_assert(kAhead == 1, "the list of columns comes one panel ahead of the columns");
    stager.copy_list(panel);
    copy_async_commit();
    wait_copies<0>();
    if (panel + 1 < end) stager.copy_list(panel + 1);
  }
  FS_NO_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    if (panel + i < end) stager.copy(panel + i);
    copy_async_commit();
  }
  FS_NO_UNROLL
  for (; panel < end; ++panel) {
    wait_copies<kAhead - 1>();
    const int next = panel + kAhead;
    if constexpr (Shape::kPacking) {
      if (next + 1 < end) stager.copy_list(next + 1);
      if (next < end) stager.copy_index(next);
      const Panel from = stager.panel(next);
      tile.multiply(stager.stage_of(panel), [&](int chunk) {
        if (next == end) return;
        stager.copy_values(from, chunk);
        stager.copy_listed(from, chunk);
      });
      copy_async_commit();
    } else {
      if (next < end) stager.copy(next);
      copy_async_commit();
      tile.multiply(stager.stage_of(panel), [](int) {});
    }
  }
}

// Launch with Plan::tiles() x Plan::splits blocks of KernelInfo::threads() threads and
// Plan::shared_bytes() of dynamic shared memory.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_kernel(const Weight weight, const Arguments arguments) {
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = shared_address(dynamic);
  const TilePlace place(arguments);
  const Stager<Shape> stager(weight, arguments, place.token, place.row, shared);
  Tile<Shape> tile(weight, arguments);
  const int panel = static_cast<int>(int64_t{weight.panels} * blockIdx.y / gridDim.y);
  const int end = static_cast<int>(int64_t{weight.panels} * (blockIdx.y + 1) / gridDim.y);
  if constexpr (Shape::kPipelined) {
    multiply_pipelined(stager, tile, panel, end);
  } else {
    multiply_unpipelined(stager, tile, panel, end);
  }
  WriteY<Shape>(arguments, place, tile, shared).run(tile);
}

using Kernel = void (*)(Weight, Arguments);

#define FS_NM_SPMM_COMPILED(...) linear_kernel<Shape<__VA_ARGS__>>,
// Indexed like kKernels.
inline const Kernel kCompiled[] = {FS_NM_SPMM_KERNELS(FS_NM_SPMM_COMPILED)};
#undef FS_NM_SPMM_COMPILED

// The arguments that follow from the plan.
inline void fill(const Layout& layout, const Plan& plan, Arguments& arguments) {
  arguments.column_bytes = static_cast<uint32_t>(plan.xt_stride(arguments.tokens) * sizeof(float));
  arguments.token_tiles = static_cast<int>(ceil_div(arguments.tokens, plan.info().tokens));
  arguments.row_tiles = static_cast<int>(ceil_div(arguments.rows, plan.info().rows));
  arguments.stage = plan.stage(layout);
}

}  // namespace flashsparse::nm_spmm
