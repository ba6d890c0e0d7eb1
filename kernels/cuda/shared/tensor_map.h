// SPDX-License-Identifier: Apache-2.0
// Makes the map by which the hardware copies tiles out of a matrix (common/tensor_map.cuh).
#pragma once
#include <cuda_runtime_api.h>

#include "common/tensor_map.h"

namespace flashsparse::cuda {

// Needs a driver of CUDA 12 and compute capability 9.0 or later. Nothing is kept of it: a kernel
// gets the map by value, so that a CUDA graph holds it.
cudaError_t make_tensor_map(const TiledMatrix& matrix, TensorMap* map);

}  // namespace flashsparse::cuda
