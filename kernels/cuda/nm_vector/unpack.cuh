// SPDX-License-Identifier: Apache-2.0
// Unpacks nm_vector to a dense weight on the GPU, a block for a tile of some rows by whole windows.
//
// The block lists the column of each entry, once for each group of its rows. Then each warp makes a
// row at a time: it clears the row in shared memory, stores each value at its column, and writes
// the row.
#pragma once
#include <type_traits>

#include "common/dtype.h"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/nm_vector/extent.h"
#include "cuda/nm_vector/positions.cuh"
#include "cuda/nm_vector/unpack_tile.h"
#include "cuda/shared/lanes.cuh"
#include "formats/value_type.h"

namespace flashsparse::nm_vector {

inline constexpr int kUnpackWarps = kUnpackThreads / kLanes;

// Converts between float and the bits of a weight's dtype: Float16, BFloat16 or float.
template <class Type>
struct Bits {
  using Value = uint16_t;
  static __device__ __forceinline__ Value of(float number) { return from_float<Type>(number); }
  static __device__ __forceinline__ float number(Value bits) { return to_float<Type>(bits); }
};
template <>
struct Bits<float> {
  using Value = uint32_t;
  static __device__ __forceinline__ Value of(float number) { return __float_as_uint(number); }
  static __device__ __forceinline__ float number(Value bits) { return __uint_as_float(bits); }
};

// Native values, of any dtype that is as wide as Word.
template <class Word>
struct NativeValues {
  using Value = Word;
  struct Row {
    const Value* values;
    __device__ __forceinline__ Value at(int entry, int) const {
      return load_readonly(values + entry);
    }
  };
  const Value* values;
  int64_t kept;

  __device__ __forceinline__ Row row(int64_t number) const { return {values + number * kept}; }
};

// Quantized values and their scales.
template <class Type, ValueType kType>
struct CodedValues {
  using Value = typename Bits<Type>::Value;
  struct Row {
    const uint8_t* codes;
    const Value* group_scales;  // if groups of columns have scales
    int group_shift;            // log2 of the columns of a group
    float scale;

    __device__ __forceinline__ Value at(int entry, int column) const {
      float own = scale;
      if (group_scales)
        own = Bits<Type>::number(load_readonly(group_scales + (column >> group_shift)));
      return Bits<Type>::of(number(entry) * own);
    }
    __device__ __forceinline__ float number(int entry) const {
      if constexpr (bits_of(kType) == 4) {
        const int byte = load_readonly(codes + entry / 2);
        return static_cast<float>(((byte >> entry % 2 * 4 & 15) ^ 8) - 8);
      } else {
        const int byte = load_readonly(codes + entry);
        if constexpr (kType == ValueType::kInt8)
          return static_cast<float>(static_cast<int8_t>(byte));
        // Moves sign, exponent and mantissa to their position in a float, whose exponent bias is
        // 127, not 7.
        const uint32_t bits = static_cast<uint32_t>(byte);
        return __uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 0x1p120f;
      }
    }
  };
  const uint8_t* codes;
  const void* scales;          // null: 1
  int64_t code_bytes, groups;  // of a row; groups: 0 if it has one scale
  int group_shift;

  __device__ __forceinline__ Row row(int64_t number) const {
    Row row{codes + number * code_bytes, nullptr, group_shift, 1.0f};
    if (!scales) return row;
    if (groups) {
      row.group_scales = static_cast<const Value*>(scales) + number * groups;
    } else {
      row.scale = load_readonly(static_cast<const float*>(scales) + number);
    }
    return row;
  }
};

// Calls body(values) with an object that reads the values of a weight.
template <class Body>
void with_values(const void* values, ValueType type, const void* scales, int64_t group,
                 int64_t kept, int64_t cols, Dtype dtype, const Body& body) {
  int shift = 0;
  while (int64_t{1} << shift < group) ++shift;
  const auto coded = [&](auto of_type, auto code) {
    using Type = decltype(of_type);
    constexpr ValueType kType = decltype(code)::value;
    body(CodedValues<Type, kType>{static_cast<const uint8_t*>(values), scales,
                                  code_bytes(kType, kept), group ? (cols + group - 1) / group : 0,
                                  shift});
  };
  with_type(type, [&](auto code) {
    if constexpr (decltype(code)::value != ValueType::kNative) {
      if (dtype == Dtype::kFloat32) return coded(float{}, code);
      if (dtype == Dtype::kFloat16) return coded(Float16{}, code);
      return coded(BFloat16{}, code);
    } else {
      if (dtype == Dtype::kFloat32)
        return body(NativeValues<uint32_t>{static_cast<const uint32_t*>(values), kept});
      return body(NativeValues<uint16_t>{static_cast<const uint16_t*>(values), kept});
    }
  });
}

// The part of a weight that a block unpacks.
struct UnpackPart {
  int64_t row;                      // first of the part
  int window, col;                  // first of the part
  int groups, rows, windows, cols;  // counts; the last window may have more columns
};
__device__ __forceinline__ UnpackPart unpack_part(const Extent& extent, const UnpackTiles& tiles,
                                                  int64_t rows, int cols) {
  const uint32_t across = tiles.across, down = blockIdx.x / across;
  const int64_t row = static_cast<int64_t>(down) * kUnpackRows;
  const int window = static_cast<int>(blockIdx.x - down * across) * tiles.windows;
  const int col = window * extent.m;
  const int rows_here = static_cast<int>(min(rows - row, int64_t{kUnpackRows}));
  return {row,
          window,
          col,
          static_cast<int>(extent.groups(rows_here)),
          rows_here,
          min(tiles.windows, extent.windows - window),
          min(tiles.windows * extent.m, cols - col)};
}

// Lists the column of each entry of the part's groups, counted from the part's first. Positions are
// not trusted: those past its columns become `beyond`.
__device__ __forceinline__ void list_columns(const uint8_t* __restrict__ index,
                                             const UnpackPart& part, const Extent& extent,
                                             int beyond, uint16_t* columns) {
  const int n = extent.n, bits = extent.bits, entries = part.windows * n;
  // To the part's first group and window.
  index += (part.row >> extent.length_shift) * extent.index_bytes;
  index += static_cast<int64_t>(part.window) * n * bits / 8;
  const uint32_t eights = (entries + 7) / 8;
  for (uint32_t i = threadIdx.x; i < part.groups * eights; i += kUnpackThreads) {
    const int group = i / eights, first = (i - group * eights) * 8, count = min(entries - first, 8);
    auto positions = load_positions<uint64_t>(index + group * extent.index_bytes + first / 8 * bits,
                                              bits, count);
    uint16_t* const to = columns + group * entries + first;
    const int window = first / n;
    int begin = window * extent.m, left = n - (first - window * n);
    FS_NO_UNROLL
    for (int e = 0; e < count; ++e) {
      const int column = begin + static_cast<int>(positions & ((1u << bits) - 1));
      positions >>= bits;
      to[e] = static_cast<uint16_t>(column < part.cols ? column : beyond);
      if (--left == 0) {
        begin += extent.m;
        left = n;
      }
    }
  }
}

// Writes a row of `count` weights from shared memory.
template <class Value>
__device__ __forceinline__ void write_row(uint32_t from, int count, bool whole, Value* to) {
  constexpr int kChunk = sizeof(uint4) / sizeof(Value);
  const int lane = threadIdx.x % kLanes;
  if (whole) {
    FS_UNROLL_BY(2)
    for (int i = lane; i < count / kChunk; i += kLanes) {
      store_global(reinterpret_cast<uint4*>(to) + i,
                   load_shared<uint4>(from + i * uint32_t{sizeof(uint4)}));
    }
  } else {
    FS_UNROLL_BY(2)
    for (int i = lane; i < count; i += kLanes) {
      store_global(to + i, load_shared<Value>(from + i * uint32_t{sizeof(Value)}));
    }
  }
}

// Writes every element of weight [rows, cols], zeros included. Values is NativeValues or
// CodedValues. Whatever the tensors hold, no access is out of bounds; `validate` checks once, at
// load, that they are a packed weight. Launch with tiles.count() blocks of kUnpackThreads and
// tiles.shared_bytes() of dynamic shared memory.
template <class Values>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const Values stored, const uint8_t* __restrict__ index, const Extent extent,
                  const UnpackTiles tiles, int64_t rows, int cols,
                  typename Values::Value* __restrict__ weight) {
  using Value = typename Values::Value;
  constexpr int kChunk = sizeof(uint4) / sizeof(Value);
  FS_DYNAMIC_SHARED(dynamic);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int row_bytes = tiles.row_bytes(extent, sizeof(Value));
  const int beyond = tiles.windows * extent.m;
  auto* const columns = reinterpret_cast<uint16_t*>(dynamic + kUnpackWarps * row_bytes);
  const uint32_t own = shared_address(dynamic) + warp * row_bytes;
  const UnpackPart part = unpack_part(extent, tiles, rows, cols);
  const int entries = part.windows * extent.n;

  list_columns(index, part, extent, beyond, columns);
  __syncthreads();
  const bool whole =
      (cols | part.col) % kChunk == 0 && reinterpret_cast<uintptr_t>(weight) % sizeof(uint4) == 0;
  for (int r = warp; r < part.rows; r += kUnpackWarps) {
    FS_NO_UNROLL
    for (int i = lane; i < row_bytes / int{sizeof(uint4)}; i += kLanes) {
      store_shared(own + i * uint32_t{sizeof(uint4)}, make_uint4(0, 0, 0, 0));
    }
    __syncwarp();
    const auto row = stored.row(part.row + r);
    const uint16_t* const places = columns + (r >> extent.length_shift) * entries;
    const int first = part.window * extent.n;
    FS_UNROLL_BY(4)
    for (int entry = lane; entry < entries; entry += kLanes) {
      const int place = places[entry];
      const Value value = row.at(first + entry, min(part.col + place, cols - 1));
      // Two entries share a column only past the weight, or in tensors that `validate` rejects.
      if (place < beyond) store_shared(own + place * uint32_t{sizeof(Value)}, value);
    }
    __syncwarp();
    write_row(own, part.cols, whole, weight + ((part.row + r) * int64_t{cols} + part.col));
    __syncwarp();  // the next row overwrites this one
  }
}

}  // namespace flashsparse::nm_vector
