// SPDX-License-Identifier: Apache-2.0
// Launchers of the nm_gather kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/nm_gather/linear_plan.h"
#include "cuda/nm_gather/packed_plan.h"
#include "cuda/nm_gather/tiles_plan.h"
#include "cuda/nm_gather/transpose_x.h"
#include "formats/nm_gather.h"

namespace flashsparse::cuda {

struct NmGatherProduct {
  nm_gather::Stored weight;
  const uint16_t* x;  // on 8 bytes; zero from cols up to x_stride, a multiple of 4
  int x_stride;
  const float* x_scales;  // [tokens] where x holds codes of quantized tokens, else null
  const uint16_t* bias;   // or null
  uint16_t* y;            // on 8 bytes
  float* partials;        // plan.partial_floats(), on 16 bytes
  uint32_t* arrivals;     // plan.row_blocks() of cuda::arrivals where plan.splits > 1
  int64_t rows, cols;
  int tokens;
};

// `early`: it may begin before the kernel before it in the stream has ended, which may make x; on
// Hopper.
cudaError_t nm_gather_linear(const nm_gather::Layout& layout, const NmGatherProduct& product,
                             const nm_gather::Plan& plan, bool bfloat16, bool early,
                             cudaStream_t stream);

// Writes x_tiles [ceil(tokens / 64), columns, 64] of x [tokens, x_stride] (transpose_x.cuh);
// `columns` are x_tile_columns(), x is as nm_gather_linear takes it, x_tiles on 16 bytes.
cudaError_t nm_gather_transpose_x(const uint16_t* x, int x_stride, int tokens, int64_t columns,
                                  uint16_t* x_tiles, cudaStream_t stream);

struct NmGatherTiles {
  nm_gather::Stored weight;
  const uint16_t* x_tiles;  // on 16 bytes
  const float* x_scales;    // [tokens] where x holds codes of quantized tokens, else null
  const uint16_t* bias;     // or null
  uint16_t* y;              // on 8 bytes
  float* partials;          // plan.partial_floats(), on 16 bytes
  uint32_t* arrivals;       // plan.arrivals() of cuda::arrivals where that is not 0
  int64_t rows, cols, tokens;
};

// For many tokens, from x_tiles (tiles.cuh): follows nm_gather_transpose_x on the stream.
cudaError_t nm_gather_tiles(const nm_gather::Layout& layout, const NmGatherTiles& product,
                            const nm_gather::TilesPlan& plan, bool bfloat16, bool hopper,
                            cudaStream_t stream);

// The same by wgmma and packed x, on a GPU that nm_gather::packed_complaint has no word against; y
// is on 16 bytes, and nothing is shared by blocks.
cudaError_t nm_gather_packed(const nm_gather::Layout& layout, const NmGatherTiles& product,
                             const nm_gather::PackedPlan& plan, int multiprocessors, bool bfloat16,
                             cudaStream_t stream);

// Unpacks the units from first_row on, a multiple of the rows that share an index, to
// weight[rows, cols], zeros included. What `stored` has begins with what is of first_row.
cudaError_t nm_gather_unpack(const nm_gather::Layout& layout, const nm_gather::Stored& stored,
                             int64_t rows, int64_t cols, bool bfloat16, uint16_t* weight,
                             cudaStream_t stream);

}  // namespace flashsparse::cuda
