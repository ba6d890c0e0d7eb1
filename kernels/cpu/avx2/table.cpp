// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"
#include "cpu/portable/parts.h"
namespace flashsparse::cpu::avx2 {
const Kernels kKernels = {"avx2",
                          nullptr,
                          &portable::kBFloat16Float32,
                          &portable::kFloat16Float32,
                          portable::store,
                          portable::count_nonzeros,
                          portable::pack_panel,
                          portable::pack_tile_panel,
                          portable::unpack_panel,
                          portable::count_tiles,
                          portable::pack_tile};
}
