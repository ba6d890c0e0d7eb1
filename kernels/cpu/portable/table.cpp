// SPDX-License-Identifier: Apache-2.0
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {

const Kernels kKernels = {"portable",   nullptr,        &kBFloat16Float32, &kFloat16Float32,
                          store,        count_nonzeros, pack_panel,        pack_tile_panel,
                          unpack_panel, count_tiles,    pack_tile,         decode};

}  // namespace flashsparse::cpu::portable
