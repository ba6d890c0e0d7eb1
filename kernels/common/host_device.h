// SPDX-License-Identifier: Apache-2.0
// For functions that host and kernels share. No CUDA header: nvcc and g++ compile it.
#pragma once

#ifdef __CUDACC__
#define FS_HOST_DEVICE __host__ __device__
#else
#define FS_HOST_DEVICE
#endif
