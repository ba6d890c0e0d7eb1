// SPDX-License-Identifier: Apache-2.0
// How tensors of nm_vector are read when they are validated on a GPU, and what blocks report.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/host_device.h"
#include "formats/nm_vector.h"
#include "formats/value_type.h"

namespace flashsparse::nm_vector {

inline constexpr int kValidateThreads = 256;
inline constexpr int64_t kMostValidateBlocks = 2048;

// Values as fields of `bits` bits in a word, low ones first.
struct Fields {
  int bits;
  uint32_t magnitude;  // the bits of a word that are not all 0 in a nonzero field
  uint32_t high;       // the highest bit of each field
  bool has_nan;        // a value may be NaN: all bits of its magnitude are set

  // `value_bytes`: of native values.
  static constexpr Fields of(ValueType type, int value_bytes) {
    if (type == ValueType::kNative) {
      return value_bytes == 4 ? Fields{32, 0x7fffffff, 0x80000000, false}
                              : Fields{16, 0x7fff7fff, 0x80008000, false};
    }
    if (type == ValueType::kFp8) return {8, 0x7f7f7f7f, 0x80808080, true};
    const int bits = bits_of(type);  // two's complement
    return {bits, 0xffffffff, bits == 8 ? 0x80808080 : 0x88888888, false};
  }
  FS_HOST_DEVICE constexpr int64_t row_bytes(int64_t kept) const { return (kept * bits + 7) / 8; }
};

// What a block has found.
struct Found {
  int64_t nonzeros;
  // The first block of the weight (a window of a group) that breaks a rule: group * windows +
  // window. Or one of the two constants below.
  int64_t broken;
};
inline constexpr int64_t kNothingBroken = INT64_MAX;
inline constexpr int64_t kNanFound = -1;

constexpr int64_t validate_blocks(const Fields& fields, const Pattern& pattern, int64_t rows,
                                  int64_t cols) {
  const int64_t bytes = rows * fields.row_bytes(pattern.kept(cols));
  return std::clamp<int64_t>(bytes / (16 * kValidateThreads), 1, kMostValidateBlocks);
}

// Combines what all blocks have found.
inline Found join(const Found* found, int64_t blocks) {
  Found all{0, kNothingBroken};
  for (int64_t i = 0; i < blocks; ++i) {
    all.nonzeros += found[i].nonzeros;
    all.broken = std::min(all.broken, found[i].broken);
  }
  return all;
}

}  // namespace flashsparse::nm_vector
