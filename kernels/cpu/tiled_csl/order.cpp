// SPDX-License-Identifier: Apache-2.0
#include "cpu/tiled_csl/order.h"

#include <algorithm>
#include <cstring>

namespace flashsparse::tiled_csl {
namespace {

int count_bits(uint32_t mask) {
  mask -= mask >> 1 & 0x55555555;
  mask = (mask & 0x33333333) + (mask >> 2 & 0x33333333);
  return static_cast<int>(((mask + (mask >> 4)) & 0x0f0f0f0f) * 0x01010101u >> 24);
}

// The words that banks have left. The loops below avoid branches on the content of words, which
// could not be predicted and took most of the time.
class Rest {
 public:
  Rest(const BankQueues& banks, int taken) : banks_(banks) {
    for (int b = 0; b < kBanks; ++b) {
      // If the cut splits a pair, its upper half becomes a single.
      const int half = taken > banks.singles[b] ? (taken - banks.singles[b]) & 1 : 0;
      const int single_end = std::max(banks.singles[b], taken + half);
      cursors_[b] = {taken, single_end, single_end};
      left_[b] = static_cast<uint16_t>(banks.count[b] - taken);
      with_words_ |= static_cast<uint32_t>(left_[b] > 0) << b;
      with_pairs_ |= static_cast<uint32_t>(single_end < banks.count[b]) << b;
    }
  }

  int words() const {
    int words = 0;
    for (int b = 0; b < kBanks; ++b) words += left_[b];
    return words;
  }

  // Fills at most `room` places; returns how many.
  int round(int room, uint32_t* out) {
    const uint32_t joining = fullest(with_words_, room);
    const int ones = count_bits(joining);
    const uint32_t doubling = fullest(joining & with_pairs_, room - ones);
    for (uint32_t mask = joining; mask; mask &= mask - 1) {
      const int b = __builtin_ctz(mask);
      out += give(b, doubling >> b & 1, out);
    }
    return ones + count_bits(doubling);
  }

 private:
  struct Cursors {
    int single, single_end;  // the next single, and where they end
    int pair;                // the lower half of the next pair
  };

  // The `count` banks in `mask` with the most words left; among equals, the lowest.
  uint32_t fullest(uint32_t mask, int count) const {
    if (count <= 0) return 0;
    if (count_bits(mask) <= count) return mask;
    int16_t key[kBanks];
    for (int b = 0; b < kBanks; ++b) {
      key[b] = static_cast<int16_t>(left_[b] & -static_cast<int>(mask >> b & 1));
    }
    const auto above = [&](int level) {  // banks with more than `level` words left
      int16_t banks = 0;
      for (int b = 0; b < kBanks; ++b) banks = static_cast<int16_t>(banks + (key[b] > level));
      return banks;
    };
    int low = 0, high = kTileElements / kBanks;  // to the lowest level that at most `count` exceed
    while (low < high) {
      const int middle = (low + high) / 2;
      above(middle) <= count ? high = middle : low = middle + 1;
    }
    uint32_t over = 0, equal = 0;
    for (int b = 0; b < kBanks; ++b) {
      over |= static_cast<uint32_t>(key[b] > low) << b;
      equal |= static_cast<uint32_t>(key[b] == low) << b;
    }
    equal &= mask;
    for (int room = count - count_bits(over); room > 0; --room, equal &= equal - 1) {
      over |= equal & -equal;
    }
    return over;
  }

  // Writes the next pair of bank b, or else its next word; returns how many words.
  int give(int b, uint32_t pair, uint32_t* out) {
    Cursors at = cursors_[b];
    const bool split = !pair && at.single == at.single_end;  // the upper half becomes a single
    at.single = split ? at.pair : at.single;
    at.pair += split ? 2 : 0;
    at.single_end = split ? at.pair : at.single_end;
    const uint32_t* from = banks_.words[b] + (pair ? at.pair : at.single);
    out[0] = from[0];
    if (pair) out[1] = from[1];
    at.single += pair ? 0 : 1;
    at.pair += pair ? 2 : 0;
    cursors_[b] = at;
    left_[b] = static_cast<uint16_t>(left_[b] - (1 + pair));
    with_words_ &= ~(static_cast<uint32_t>(left_[b] == 0) << b);
    with_pairs_ &= ~(static_cast<uint32_t>(at.pair >= banks_.count[b]) << b);
    return 1 + static_cast<int>(pair);
  }

  const BankQueues& banks_;
  Cursors cursors_[kBanks];
  uint16_t left_[kBanks];
  uint32_t with_words_ = 0, with_pairs_ = 0;
};

}  // namespace

int BankQueues::shortest() const { return *std::min_element(count, count + kBanks); }

uint32_t* write_remaining(const BankQueues& banks, int taken, uint32_t* words) {
  Rest rest(banks, taken);
  for (int remaining = rest.words(); remaining > 0;) {
    int room = std::min(remaining, kBanks);
    remaining -= room;
    while (room > 0) {
      const int filled = rest.round(room, words);
      words += filled;
      room -= filled;
    }
  }
  return words;
}

}  // namespace flashsparse::tiled_csl
