// SPDX-License-Identifier: Apache-2.0
// Shared memory of the epilogue of grouped products by wgmma (wgmma_store.cuh).
#pragma once

namespace flashsparse::experts {

// Bytes of a warp, of a gated product: a float4 of each lane for 8 slots, twice.
inline constexpr int kWgmmaExchange = 2 * 32 * 16;

}  // namespace flashsparse::experts
