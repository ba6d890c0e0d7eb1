// SPDX-License-Identifier: Apache-2.0
// Which expert of a mixture each slot belongs to. A slot is a token and one of the experts that its
// router chose: slot token * top_k + j.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::experts {

inline constexpr int kMostExperts = 1024;

// Device memory.
struct Routing {
  const int32_t* ids;  // of the slots: each begins with this many words, of which the first counts
  int id_words;        // 1 for int32, 2 for int64
  const int32_t* map;  // [known]: the local expert of each, or -1; or null, where all are local
  int slots, known, experts;  // tokens * top_k; experts that ids name; local experts

  // The local expert of a slot, or -1 where it is elsewhere, and where the id is of no expert.
  FS_HOST_DEVICE int expert_of(int slot) const {
    int id = ids[int64_t{slot} * id_words];
    if (id < 0 || id >= known) return -1;
    if (map) id = map[id];
    return id >= 0 && id < experts ? id : -1;
  }
};

// Slots ordered by expert. A block is `block_slots` slots of one expert.
struct Order {
  int32_t* slots;    // [most_slots()]: each block's own, padded with Routing::slots
  int32_t* experts;  // [most_blocks()]: of each block, -1 after the last
  int32_t* blocks;   // [1]: how many there are
  int32_t* spans;    // [most_blocks()][2], 8-byte aligned: of each block, the first block of its
                     // expert, and how many there are
};

// Most blocks of any routing, and the length of the list of slots.
constexpr int64_t most_blocks(int64_t slots, int64_t experts, int64_t block_slots) {
  const int64_t padded = (slots + experts * (block_slots - 1)) / block_slots;
  return slots < padded ? slots : padded;
}
constexpr int64_t most_slots(int64_t slots, int64_t experts, int64_t block_slots) {
  return slots + experts * (block_slots - 1);
}

}  // namespace flashsparse::experts
