// SPDX-License-Identifier: Apache-2.0
// A weight in nm_vector, as the drivers read it from stdin:
//   int64 rows, cols, n, m, vector_length, value type, bytes of weight_packed, bytes of an element
//   of weight_scale (0: there is none), group, dtype (common/dtype.h), seed, blocks (0: as the host
//   plans); weight_packed; weight_index; weight_scale
#pragma once
#include <cstdint>
#include <optional>

#include "common/dtype.h"
#include "cuda/nm_vector/extent.h"
#include "emulator/driver.h"
#include "formats/nm_vector.h"
#include "formats/value_type.h"

namespace driver {

struct NmVectorCase {
  int64_t rows, cols;
  flashsparse::nm_vector::Pattern pattern;
  flashsparse::ValueType type;
  int64_t group;
  flashsparse::Dtype dtype;
  unsigned seed;
  int64_t blocks;
  DeviceArray<uint8_t> values, index, scales;

  bool has_scales() const { return scales.get() != nullptr; }
  flashsparse::nm_vector::Extent extent() const {
    return flashsparse::nm_vector::Extent::of(pattern, cols);
  }
};

inline std::optional<NmVectorCase> read_nm_vector_case() {
  int64_t header[12];
  if (!read_header(header)) return std::nullopt;
  const auto [rows, cols, n, m, length, type, value_bytes, scale_bytes, group, dtype, seed,
              blocks] = header;
  const flashsparse::nm_vector::Pattern pattern{n, m, length};
  const int64_t scales = rows * (group ? (cols + group - 1) / group : 1) * scale_bytes;
  NmVectorCase given{rows,
                     cols,
                     pattern,
                     static_cast<flashsparse::ValueType>(type),
                     group,
                     static_cast<flashsparse::Dtype>(dtype),
                     static_cast<unsigned>(seed),
                     blocks,
                     read<uint8_t>(value_bytes),
                     read<uint8_t>(pattern.groups(rows) * pattern.index_bytes(cols)),
                     {nullptr, &std::free}};
  if (scale_bytes) given.scales = read<uint8_t>(scales);
  return given;
}

}  // namespace driver
