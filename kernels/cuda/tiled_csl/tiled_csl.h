// SPDX-License-Identifier: Apache-2.0
// Launchers of the Tiled-CSL kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/linear_plan.h"
#include "cuda/tiled_csl/words.h"

namespace flashsparse::cuda {

// Unpacks words[num_words] to weight[rows, cols] (16-bit values, zeros included) on `stream` of the
// current device. `words` is aligned to 16 bytes, `offsets` has one entry a tile and one more;
// rows, cols >= 1. Returns cudaErrorInvalidValue where the arguments cannot be launched.
// A panel of rows from a multiple of 128 on is a weight of its own: its tiles follow each other, so
// it takes fewer rows, and offsets that begin at its first tile.
cudaError_t tiled_csl_unpack(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);

// By a plan for no fewer tokens; arguments.partials has plan.partial_floats(), and
// arguments.arrivals linear::tile_rows(rows) of cuda::arrivals.
cudaError_t tiled_csl_linear(const tiled_csl::Words& weight, const linear::Arguments& arguments,
                             const tiled_csl::LinearPlan& plan, bool bfloat16, cudaStream_t stream);

// Validates words[num_words] and `offsets` of any content: verdicts[t] >= 0 is the number of
// nonzeros of tile t, a negative one the rule that it breaks (verdict.h).
cudaError_t tiled_csl_validate(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                               int64_t rows, int64_t cols, int32_t* verdicts, cudaStream_t stream);

// Packs weight[rows, cols] (row by row, 16-bit values) in two steps, since the words can only be
// allocated when they are counted. The first fills lengths[tiles], of which sum_offsets (offsets.h)
// makes the offsets and the number of words. The second fills words, aligned to 16 bytes, in the
// canonical order.
cudaError_t tiled_csl_count(const uint16_t* weight, int64_t rows, int64_t cols, int32_t* lengths,
                            cudaStream_t stream);
cudaError_t tiled_csl_pack(const uint16_t* weight, int64_t rows, int64_t cols,
                           const int32_t* offsets, uint32_t* words, cudaStream_t stream);

}  // namespace flashsparse::cuda
