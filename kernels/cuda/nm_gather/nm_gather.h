// SPDX-License-Identifier: Apache-2.0
// Launchers of the nm_gather kernels. Pointers are device memory; nothing here synchronizes.
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
  const uint16_t* x;  // 8-byte aligned; zero from cols up to x_stride, a multiple of 4
  int x_stride;
  const float* x_scales;  // [tokens] if x holds quantized values, else null
  const uint16_t* bias;   // or null
  uint16_t* y;            // 8-byte aligned
  float* partials;        // plan.partial_floats(), 16-byte aligned
  uint32_t* arrivals;     // plan.row_blocks() counters of cuda::arrivals if plan.splits > 1
  int64_t rows, cols;
  int tokens;
};

// `early`: launches with programmatic dependent launch, so that the kernel may start before the
// preceding one, which may write x, has ended; on Hopper.
cudaError_t nm_gather_linear(const nm_gather::Layout& layout, const NmGatherProduct& product,
                             const nm_gather::Plan& plan, bool bfloat16, bool early,
                             cudaStream_t stream);

// Writes x_tiles [ceil(tokens / 64), columns, 64] from x [tokens, x_stride] (transpose_x.cuh).
// `columns` is x_tile_columns(), x as for nm_gather_linear; x_tiles is 16-byte aligned.
cudaError_t nm_gather_transpose_x(const uint16_t* x, int x_stride, int tokens, int64_t columns,
                                  uint16_t* x_tiles, cudaStream_t stream);

struct NmGatherTiles {
  nm_gather::Stored weight;
  const uint16_t* x_tiles;  // 16-byte aligned
  const float* x_scales;    // [tokens] if x holds quantized values, else null
  const uint16_t* bias;     // or null
  uint16_t* y;              // 8-byte aligned
  float* partials;          // plan.partial_floats(), 16-byte aligned
  uint32_t* arrivals;       // plan.arrivals() counters of cuda::arrivals if not 0
  int64_t rows, cols, tokens;
};

// For many tokens, from x_tiles (tiles.cuh). Must follow nm_gather_transpose_x on the stream.
cudaError_t nm_gather_tiles(const nm_gather::Layout& layout, const NmGatherTiles& product,
                            const nm_gather::TilesPlan& plan, bool bfloat16, bool hopper,
                            cudaStream_t stream);

// The same by wgmma and packed x (packed.cuh), if packed_complaint() returns null. y is 16-byte
// aligned; partials and arrivals are not used.
cudaError_t nm_gather_packed(const nm_gather::Layout& layout, const NmGatherTiles& product,
                             const nm_gather::PackedPlan& plan, int multiprocessors, bool bfloat16,
                             cudaStream_t stream);

// Unpacks to weight[rows, cols], zeros included. To unpack rows from a multiple of those that share
// an index on, pass a `stored` that begins with the first of them.
cudaError_t nm_gather_unpack(const nm_gather::Layout& layout, const nm_gather::Stored& stored,
                             int64_t rows, int64_t cols, bool bfloat16, uint16_t* weight,
                             cudaStream_t stream);

}  // namespace flashsparse::cuda
