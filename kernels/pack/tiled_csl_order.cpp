// SPDX-License-Identifier: Apache-2.0
#include "pack/tiled_csl_order.h"

#include <algorithm>

namespace flashsparse::tiled_csl {
namespace {

struct BankCursors {
  const BankQueues& banks;
  uint16_t left[kBanks];                   // words
  int single[kBanks], single_end[kBanks];  // next single, and where they end
  int pair[kBanks];                        // lower half of the next pair

  BankCursors(const BankQueues& queues, int taken) : banks(queues) {
    for (int b = 0; b < kBanks; ++b) {
      left[b] = static_cast<uint16_t>(banks.count[b] - taken);
      // Where the cut goes through a pair, its upper half is a single from now on.
      const int half = taken > banks.singles[b] ? (taken - banks.singles[b]) & 1 : 0;
      single[b] = taken;
      single_end[b] = std::max(banks.singles[b], taken + half);
      pair[b] = single_end[b];
    }
  }

  uint32_t with_words() const {
    uint32_t mask = 0;
    for (int b = 0; b < kBanks; ++b) mask |= static_cast<uint32_t>(left[b] > 0) << b;
    return mask;
  }
  uint32_t with_pairs() const {
    uint32_t mask = 0;
    for (int b = 0; b < kBanks; ++b) mask |= static_cast<uint32_t>(pair[b] < banks.count[b]) << b;
    return mask;
  }

  // Of the banks in `mask`, the `count` with the most words left; of equals, the lowest.
  uint32_t fullest(uint32_t mask, int count) const {
    if (__builtin_popcount(mask) <= count) return mask;
    uint16_t key[kBanks];
    for (int b = 0; b < kBanks; ++b) key[b] = mask >> b & 1 ? left[b] : 0;
    const auto above = [&](int level) {  // banks with more than `level` words left
      uint16_t banks_above = 0;
      for (int b = 0; b < kBanks; ++b) banks_above += key[b] > level;
      return banks_above;
    };
    int low = 0, high = kTileElements / kBanks;  // the lowest level that at most `count` exceed
    while (low < high) {
      const int middle = (low + high) / 2;
      above(middle) <= count ? high = middle : low = middle + 1;
    }
    uint32_t chosen = 0;
    int room = count - above(low);
    for (int b = 0; b < kBanks; ++b) {
      if (key[b] > low || (mask >> b & 1 && key[b] == low && room-- > 0)) chosen |= 1u << b;
    }
    return chosen;
  }

  uint32_t* give_one(int b, uint32_t* out) {
    if (single[b] == single_end[b]) {  // break a pair: its upper half becomes the next single
      single[b] = pair[b];
      single_end[b] = pair[b] += 2;
    }
    *out = banks.words[b][single[b]++];
    --left[b];
    return out + 1;
  }
  uint32_t* give_pair(int b, uint32_t* out) {
    out[0] = banks.words[b][pair[b]];
    out[1] = banks.words[b][pair[b] + 1];
    pair[b] += 2;
    left[b] -= 2;
    return out + 2;
  }
};

}  // namespace

int BankQueues::shortest() const { return *std::min_element(count, count + kBanks); }

uint32_t* write_remaining(const BankQueues& banks, int taken, uint32_t* words) {
  BankCursors cursors(banks, taken);
  int remaining = 0;
  for (int b = 0; b < kBanks; ++b) remaining += cursors.left[b];
  while (remaining > 0) {
    int room = std::min(remaining, kBanks);
    remaining -= room;
    while (room > 0) {  // one round
      const uint32_t joining = cursors.fullest(cursors.with_words(), room);
      const int extra = room - __builtin_popcount(joining);
      const uint32_t doubling = extra ? cursors.fullest(joining & cursors.with_pairs(), extra) : 0;
      for (uint32_t mask = joining; mask; mask &= mask - 1) {
        const int b = __builtin_ctz(mask);
        words = doubling >> b & 1 ? cursors.give_pair(b, words) : cursors.give_one(b, words);
      }
      room -= __builtin_popcount(joining) + __builtin_popcount(doubling);
    }
  }
  return words;
}

}  // namespace flashsparse::tiled_csl
