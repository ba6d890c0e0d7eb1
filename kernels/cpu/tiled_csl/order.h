// SPDX-License-Identifier: Apache-2.0
// The canonical order of the words of a Tiled-CSL tile (formats/tiled_csl.h): the part that needs
// no vectors, shared by all instruction sets.
#pragma once
#include <cstdint>

#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

// The words of one tile by bank: first the singles, then the pairs (lower half, upper half), each
// in order of location. Vector kernels may write and read up to kSlack words past a queue's end.
struct BankQueues {
  static constexpr int kSlack = 16;
  static constexpr int kCapacity = kTileElements / kBanks + kSlack;

  alignas(64) uint32_t words[kBanks][kCapacity];
  int singles[kBanks];
  int count[kBanks];  // singles + 2 * pairs

  int shortest() const;
};

// Writes what remains after every bank has given its first `taken` words; returns the new end.
uint32_t* write_remaining(const BankQueues& banks, int taken, uint32_t* words);

}  // namespace flashsparse::tiled_csl
