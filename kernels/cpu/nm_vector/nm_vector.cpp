// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_vector/nm_vector.h"

#include <algorithm>
#include <atomic>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/scalar.h"
#include "cpu/scalar_code.h"
#include "formats/nm_vector_errors.h"

namespace flashsparse::nm_vector {
namespace {

// Neither +0 nor -0.
template <typename Value>
constexpr Value magnitude(Value bits) {
  return static_cast<Value>(bits << 1);
}

// Groups in a thread's chunk.
int64_t groups_at_once(const Pattern& pattern, int64_t cols) {
  return std::max<int64_t>(1, (int64_t{1} << 16) / (pattern.length * cols));
}

// Calls body(group) for all groups, in chunks; returns the first group for which it was false, or
// their number.
template <typename Body>
int64_t first_failure(const Pattern& pattern, int64_t rows, int64_t cols, const Body& body) {
  const int64_t groups = pattern.groups(rows), step = groups_at_once(pattern, cols);
  std::atomic<int64_t> first_bad{groups};
  parallel_chunks((groups + step - 1) / step, [&](int64_t chunk) {
    const int64_t end = std::min(groups, (chunk + 1) * step);
    for (int64_t group = chunk * step; group < end; ++group) {
      if (body(group)) continue;
      int64_t known = first_bad.load();
      while (group < known && !first_bad.compare_exchange_weak(known, group)) {
      }
      return;
    }
  });
  return first_bad.load();
}

// used[c] = whether a row of the group has a nonzero in column c; false past the edge.
template <typename Value>
const uint8_t* used_columns(const Value* weight, int64_t rows, int64_t cols, int64_t padded) {
  static thread_local AlignedBuffer buffer;
  uint8_t* used = buffer.get<uint8_t>(padded);
  std::fill_n(used, padded, uint8_t{0});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) used[c] |= magnitude(weight[r * cols + c]) != 0;
  }
  return used;
}

// The kept columns of a window, ascending: the used ones, and the smallest others.
void choose(const uint8_t* used, const Pattern& pattern, int64_t count, int32_t first,
            int32_t* columns) {
  int64_t spare = pattern.n - count;
  for (int64_t p = 0; p < pattern.m; ++p) {
    if (!used[p] && spare-- <= 0) continue;
    *columns++ = first + static_cast<int32_t>(p);
  }
}

int64_t count_used(const uint8_t* used, int64_t m) {
  int64_t count = 0;
  for (int64_t p = 0; p < m; ++p) count += used[p];
  return count;
}

void write_positions(const int32_t* columns, int64_t kept, const Pattern& pattern, int64_t cols,
                     uint8_t* index) {
  const int bits = pattern.index_bits();
  std::fill_n(index, pattern.index_bytes(cols), uint8_t{0});
  int64_t bit = 0;
  for (int64_t first = 0, entry = 0; entry < kept; first += pattern.m) {
    for (int64_t i = 0; i < pattern.n; ++i, ++entry, bit += bits) {
      const auto word = static_cast<uint32_t>(columns[entry] - first) << bit % 8;
      index[bit / 8] = static_cast<uint8_t>(index[bit / 8] | word);
      if (word >> 8) index[bit / 8 + 1] = static_cast<uint8_t>(word >> 8);
    }
  }
}

template <typename Value>
void take_values(const Value* row, const int32_t* columns, int64_t kept, int64_t cols,
                 Value* values) {
  for (int64_t j = 0; j < kept; ++j) {
    const Value bits = columns[j] < cols ? row[columns[j]] : Value{0};
    values[j] = magnitude(bits) ? bits : Value{0};
  }
}

int32_t* column_buffer(int64_t kept) {
  static thread_local AlignedBuffer buffer;
  return buffer.get<int32_t>(kept);
}

}  // namespace

template <typename Value>
std::string pack(const Value* weight, int64_t rows, int64_t cols, const Pattern& pattern,
                 Value* values, uint8_t* index) {
  const int64_t windows = pattern.windows(cols), kept = pattern.kept(cols);
  const auto rows_of = [&](int64_t group) {
    return std::min(pattern.length, rows - group * pattern.length);
  };
  const auto used_by = [&](int64_t group) {
    return used_columns(weight + group * pattern.length * cols, rows_of(group), cols,
                        windows * pattern.m);
  };
  const int64_t bad = first_failure(pattern, rows, cols, [&](int64_t group) {
    const uint8_t* used = used_by(group);
    int32_t* columns = column_buffer(kept);
    for (int64_t w = 0; w < windows; ++w) {
      const int64_t count = count_used(used + w * pattern.m, pattern.m);
      if (count > pattern.n) return false;
      choose(used + w * pattern.m, pattern, count, static_cast<int32_t>(w * pattern.m),
             columns + w * pattern.n);
    }
    write_positions(columns, kept, pattern, cols, index + group * pattern.index_bytes(cols));
    for (int64_t r = group * pattern.length; r < group * pattern.length + rows_of(group); ++r) {
      take_values(weight + r * cols, columns, kept, cols, values + r * kept);
    }
    return true;
  });
  if (bad == pattern.groups(rows)) return {};
  const uint8_t* used = used_by(bad);
  for (int64_t w = 0;; ++w) {
    const int64_t count = count_used(used + w * pattern.m, pattern.m);
    if (count <= pattern.n) continue;
    return breach_error(pattern, {bad, w, static_cast<int>(count)}, rows, cols);
  }
}

void read_columns(const Pattern& pattern, int64_t cols, const uint8_t* index, int32_t* columns) {
  const int bits = pattern.index_bits();
  const int64_t kept = pattern.kept(cols);
  for (int64_t entry = 0, first = 0; entry < kept; first += pattern.m) {
    for (int64_t i = 0; i < pattern.n; ++i, ++entry) {
      columns[entry] = static_cast<int32_t>(first + position(index, entry, bits));
    }
  }
}

namespace {

// body(Value{}) with the unsigned type as wide as the weight's values.
template <typename Body>
auto by_width(Dtype dtype, const Body& body) {
  return dtype == Dtype::kFloat32 ? body(uint32_t{}) : body(uint16_t{});
}

// The kept values of a row, converted to the weight's dtype.
template <typename Value>
const Value* row_values(const Packed& packed, int64_t row) {
  const Pattern& pattern = packed.pattern;
  const int64_t kept = pattern.kept(packed.cols);
  if (packed.type == ValueType::kNative) {
    return static_cast<const Value*>(packed.values) + row * kept;
  }
  static thread_local AlignedBuffer buffer;
  Value* values = buffer.get<Value>(kept);
  const auto* codes =
      static_cast<const uint8_t*>(packed.values) + row * code_bytes(packed.type, kept);
  // All columns of a window have the same scale.
  const int64_t windows = packed.group ? packed.group / pattern.m : pattern.windows(packed.cols);
  const int64_t groups = (pattern.windows(packed.cols) + windows - 1) / windows;
  for (int64_t g = 0; g < groups; ++g) {
    const float scale =
        packed.scales ? cpu::load(packed.scales, row * groups + g, packed.scale_dtype) : 1.0f;
    const int64_t end = std::min(kept, (g + 1) * windows * pattern.n);
    for (int64_t j = g * windows * pattern.n; j < end; ++j) {
      const float number = cpu::code_number(packed.type, codes[j / codes_in_byte(packed.type)], j);
      cpu::store(values, j, number * scale, packed.dtype);
    }
  }
  return values;
}

bool has_nan_code(const Packed& packed) {
  if (packed.type != ValueType::kFp8) return false;
  const auto* codes = static_cast<const uint8_t*>(packed.values);
  const int64_t count = packed.rows * packed.pattern.kept(packed.cols);
  return std::any_of(codes, codes + count, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
}

template <typename Value>
Verdict validate_all(const Packed& packed) {
  const Pattern& pattern = packed.pattern;
  const int64_t rows = packed.rows, cols = packed.cols, kept = pattern.kept(cols);
  std::atomic<int64_t> nonzeros{0};
  const auto bad_window = [&](int64_t group) -> int64_t {  // or -1
    int32_t* columns = column_buffer(kept);
    read_columns(pattern, cols, packed.index + group * pattern.index_bytes(cols), columns);
    for (int64_t j = 0; j < kept; ++j) {
      const int64_t end = (j / pattern.n + 1) * pattern.m;
      const bool first = j % pattern.n == 0;
      if (columns[j] >= end || (!first && columns[j] <= columns[j - 1])) return j / pattern.n;
    }
    int64_t found = 0;
    const int64_t last = std::min(rows, (group + 1) * pattern.length);
    for (int64_t r = group * pattern.length; r < last; ++r) {
      const Value* values = row_values<Value>(packed, r);
      for (int64_t j = 0; j < kept; ++j) found += magnitude(values[j]) != 0;
      for (int64_t j = kept - pattern.n; j < kept; ++j) {
        if (columns[j] >= cols && magnitude(values[j])) return kept / pattern.n - 1;
      }
    }
    nonzeros += found;
    return -1;
  };
  const int64_t bad =
      first_failure(pattern, rows, cols, [&](int64_t group) { return bad_window(group) < 0; });
  if (bad == pattern.groups(rows)) return {{}, nonzeros.load()};
  return {index_error(pattern, bad, bad_window(bad), rows, cols), 0};
}

template <typename Value>
void unpack_all(const Packed& packed, int64_t first_row, int64_t count, Value* weight) {
  const Pattern& pattern = packed.pattern;
  const int64_t cols = packed.cols, kept = pattern.kept(cols);
  const int64_t step = groups_at_once(pattern, cols);
  const int64_t begin = first_row / pattern.length;
  const int64_t end = pattern.groups(first_row + count);
  parallel_chunks((end - begin + step - 1) / step, [&](int64_t chunk) {
    int32_t* columns = column_buffer(kept);
    const int64_t last_group = std::min(end, begin + (chunk + 1) * step);
    for (int64_t group = begin + chunk * step; group < last_group; ++group) {
      read_columns(pattern, cols, packed.index + group * pattern.index_bytes(cols), columns);
      const int64_t last = std::min(first_row + count, (group + 1) * pattern.length);
      for (int64_t r = group * pattern.length; r < last; ++r) {
        Value* row = weight + (r - first_row) * cols;
        std::fill_n(row, cols, Value{0});
        const Value* values = row_values<Value>(packed, r);
        for (int64_t j = 0; j < kept; ++j) {
          if (columns[j] < cols) row[columns[j]] = values[j];
        }
      }
    }
  });
}

}  // namespace

Verdict validate(const Packed& packed) {
  if (has_nan_code(packed)) return {kNanCode, 0};
  if (packed.type == ValueType::kNative) {
    return by_width(packed.dtype, [&](auto type) { return validate_all<decltype(type)>(packed); });
  }
  Packed numbers = packed;  // which float16 represents exactly
  numbers.dtype = Dtype::kFloat16;
  numbers.scales = nullptr;
  return validate_all<uint16_t>(numbers);
}

void unpack(const Packed& packed, int64_t first, int64_t count, void* weight) {
  by_width(packed.dtype, [&](auto type) {
    unpack_all(packed, first, count, static_cast<decltype(type)*>(weight));
  });
}

#define FS_INSTANTIATE(Value) \
  template std::string pack(const Value*, int64_t, int64_t, const Pattern&, Value*, uint8_t*);
FS_INSTANTIATE(uint16_t)
FS_INSTANTIATE(uint32_t)

}  // namespace flashsparse::nm_vector
