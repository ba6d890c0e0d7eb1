// SPDX-License-Identifier: Apache-2.0
// Makes the tensor map for copies of tiles of a matrix (common/tensor_map.cuh).
#pragma once
#include <cuda_runtime_api.h>

#include "common/tensor_map.h"

namespace flashsparse::cuda {

// Needs a driver of CUDA 12 and compute capability 9.0 or later. The map is passed to a kernel by
// value, so that a CUDA graph holds it.
cudaError_t make_tensor_map(const TiledMatrix& matrix, TensorMap* map);

}  // namespace flashsparse::cuda
