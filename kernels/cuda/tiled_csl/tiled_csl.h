// SPDX-License-Identifier: Apache-2.0
// Launchers of the Tiled-CSL kernels. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/linear_plan.h"
#include "cuda/tiled_csl/words.h"

namespace flashsparse::cuda {

// Unpacks words[num_words] to weight[rows, cols] (16-bit values, zeros included) on `stream` of the
// current device. `words` is 16-byte aligned, `offsets` has tiles + 1 entries; rows, cols >= 1.
// Returns cudaErrorInvalidValue for arguments that cannot be launched. Rows from a multiple of 128
// on can be unpacked alone: pass their number, and offsets from their first tile on.
cudaError_t tiled_csl_unpack(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);

// Needs a plan for at least as many tokens; arguments.partials has plan.partial_floats(), and
// arguments.arrivals linear::tile_rows(rows) counters of cuda::arrivals.
cudaError_t tiled_csl_linear(const tiled_csl::Words& weight, const linear::Arguments& arguments,
                             const tiled_csl::LinearPlan& plan, bool bfloat16, cudaStream_t stream);

// Validates tensors of any content: verdicts[t] is the number of nonzeros of tile t or, if
// negative, the rule that it breaks (verdict.h).
cudaError_t tiled_csl_validate(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                               int64_t rows, int64_t cols, int32_t* verdicts, cudaStream_t stream);

// Packs weight[rows, cols] (row-major, 16-bit values) in two steps, since the words can only be
// allocated once they are counted. tiled_csl_count fills lengths[tiles], from which sum_offsets
// (offsets.h) makes the offsets and the number of words. tiled_csl_pack fills `words`, 16-byte
// aligned, in the canonical order.
cudaError_t tiled_csl_count(const uint16_t* weight, int64_t rows, int64_t cols, int32_t* lengths,
                            cudaStream_t stream);
cudaError_t tiled_csl_pack(const uint16_t* weight, int64_t rows, int64_t cols,
                           const int32_t* offsets, uint32_t* words, cudaStream_t stream);

}  // namespace flashsparse::cuda
