// SPDX-License-Identifier: Apache-2.0
// nm_vector -> dense on the GPU, a block a tile.
//
// Positions become a bit for each column of a group, as in the packer, and the number of bits
// before a column says which of the row's values is there: so values are read, and rows written, in
// order.
#pragma once
#include <type_traits>

#include "common/dtype.h"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/lanes.cuh"
#include "cuda/nm_vector/extent.h"
#include "cuda/nm_vector/positions.cuh"
#include "cuda/nm_vector/unpack_tile.h"
#include "formats/value_type.h"

namespace flashsparse::nm_vector {

inline constexpr int kUnpackWarps = kUnpackThreads / kLanes;
inline constexpr int kUnpackWords = kMostUnpackColumns / 32;  // of bits of a group

// A float as bits of a weight's dtype: Float16, BFloat16 or float.
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

// Values of a row as they are, whatever the dtype: Word has its width.
template <class Word>
struct NativeValues {
  using Value = Word;
  struct Row {
    const Value* values;
    __device__ __forceinline__ void enter_column(int) {}
    __device__ __forceinline__ Value operator[](int entry) const {
      return load_readonly(values + entry);
    }
  };
  const Value* values;
  int64_t kept;

  __device__ __forceinline__ Row row(int64_t number) const { return {values + number * kept}; }
};

// Codes of a row and their scales.
template <class Type, ValueType kType>
struct CodedValues {
  using Value = typename Bits<Type>::Value;
  struct Row {
    const uint8_t* codes;
    const Value* group_scales;  // where columns have scales of their own
    int group_shift;            // log2 of so many columns
    float scale;

    // Eight columns from one that is a multiple of eight have the same scale.
    __device__ __forceinline__ void enter_column(int column) {
      if (group_scales)
        scale = Bits<Type>::number(load_readonly(group_scales + (column >> group_shift)));
    }
    __device__ __forceinline__ Value operator[](int entry) const {
      return Bits<Type>::of(number(entry) * scale);
    }
    __device__ __forceinline__ float number(int entry) const {
      if constexpr (kType == ValueType::kInt4) {
        const int byte = load_readonly(codes + entry / 2);
        return static_cast<float>(((byte >> entry % 2 * 4 & 15) ^ 8) - 8);
      } else {
        const int byte = load_readonly(codes + entry);
        if constexpr (kType == ValueType::kInt8)
          return static_cast<float>(static_cast<int8_t>(byte));
        // Sign, exponent and mantissa where a float has them; the exponent's bias is 7, not 127.
        const uint32_t bits = static_cast<uint32_t>(byte);
        return __uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 0x1p120f;
      }
    }
  };
  const uint8_t* codes;
  const void* scales;          // null: codes are numbers
  int64_t code_bytes, groups;  // of a row; groups: of columns with a scale, 0: it has one
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

// body(values) with how the kernel reads the values of a weight.
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
  const auto of_dtype = [&](auto code) {
    if (dtype == Dtype::kFloat32) return coded(float{}, code);
    if (dtype == Dtype::kFloat16) return coded(Float16{}, code);
    return coded(BFloat16{}, code);
  };
  switch (type) {
    case ValueType::kFp8:
      return of_dtype(std::integral_constant<ValueType, ValueType::kFp8>{});
    case ValueType::kInt8:
      return of_dtype(std::integral_constant<ValueType, ValueType::kInt8>{});
    case ValueType::kInt4:
      return of_dtype(std::integral_constant<ValueType, ValueType::kInt4>{});
    default:
      if (dtype == Dtype::kFloat32) {
        return body(NativeValues<uint32_t>{static_cast<const uint32_t*>(values), kept});
      }
      return body(NativeValues<uint16_t>{static_cast<const uint16_t*>(values), kept});
  }
}

// Of the weight, what a block has.
struct UnpackPart {
  int64_t row;                      // the first
  int window, col;                  // likewise
  int groups, rows, windows, cols;  // how many; a last window may have more columns
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

// Sets the bit of each column that a group of the part keeps. `used` holds zeros. Positions may be
// anything: those beyond the part's columns are left out.
__device__ __forceinline__ void set_used(const uint8_t* __restrict__ index, const UnpackPart& part,
                                         const Extent& extent, uint32_t* used) {
  const int n = extent.n, bits = extent.bits, entries = part.windows * n;
  // Of the part's first group, at its first window.
  index += (part.row >> extent.length_shift) * extent.index_bytes + part.window / 8 * n * bits;
  const uint32_t eights = (entries + 7) / 8;
  for (uint32_t i = threadIdx.x; i < part.groups * eights; i += kUnpackThreads) {
    const int group = i / eights, first = i % eights * 8, count = min(entries - first, 8);
    auto positions = load_positions<uint64_t>(index + group * extent.index_bytes + first / 8 * bits,
                                              bits, count);
    uint32_t* const words = used + group * kUnpackWords;
    int begin = first / n * extent.m, left = n - first % n, word = 0;
    uint32_t mask = 0;  // of that word
    for (int e = 0; e < count; ++e) {
      const int col = begin + static_cast<int>(positions & ((1u << bits) - 1));
      positions >>= bits;
      if (col < part.cols) {
        if (col / 32 != word) {
          if (mask) atomicOr(words + word, mask);
          word = col / 32;
          mask = 0;
        }
        mask |= 1u << col % 32;
      }
      if (--left == 0) {
        begin += extent.m;
        left = n;
      }
    }
    if (mask) atomicOr(words + word, mask);
  }
}

// How many bits of a group come before each of its words.
__device__ __forceinline__ void count_before(const uint32_t* used, int words, uint32_t* before) {
  const int lane = threadIdx.x % kLanes;
  uint32_t sum = 0;
  for (int first = 0; first < words; first += kLanes) {
    const uint32_t own = first + lane < words ? __popc(used[first + lane]) : 0;
    uint32_t end = own;
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += lower;
    }
    if (first + lane < words) before[first + lane] = sum + end - own;
    sum += __shfl_sync(kAllLanes, end, kLanes - 1);
  }
}

__device__ __forceinline__ void store_weights(uint16_t* to, const uint16_t (&values)[8]) {
  const auto pair = [&](int i) { return values[i] | static_cast<uint32_t>(values[i + 1]) << 16; };
  store_global(reinterpret_cast<uint4*>(to), make_uint4(pair(0), pair(2), pair(4), pair(6)));
}
__device__ __forceinline__ void store_weights(uint32_t* to, const uint32_t (&values)[4]) {
  store_global(reinterpret_cast<uint4*>(to),
               make_uint4(values[0], values[1], values[2], values[3]));
}
template <class Value>
__device__ __forceinline__ void store_weights(Value* to, const Value (&values)[1]) {
  store_global(to, values[0]);
}

// Writes a row of the part, kChunk columns a lane. `used` and `before` are those of its group.
template <int kChunk, class Row, class Value>
__device__ __forceinline__ void write_row(Row row, const UnpackPart& part, int n,
                                          const uint32_t* used, const uint32_t* before, Value* to) {
  for (int col = threadIdx.x % kLanes * kChunk; col < part.cols; col += kLanes * kChunk) {
    const uint32_t mask = used[col / 32], bits = mask >> col % 32;
    int entry = part.window * n + before[col / 32] + __popc(mask & lanes_below(col % 32));
    row.enter_column(part.col + col);
    Value values[kChunk];
    FS_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      values[i] = 0;
      if (bits >> i & 1) values[i] = row[entry++];
    }
    store_weights(to + col, values);
  }
}

// Writes every element of weight [rows, cols], zeros included. Values is NativeValues or
// CodedValues. Whatever the tensors hold, no access leaves them: that the result is the weight that
// was packed is proven by `validate`, once, at load.
// Launch with tiles.count() blocks of kUnpackThreads.
template <class Values>
__global__ void __launch_bounds__(kUnpackThreads, 4)
    unpack_kernel(const Values stored, const uint8_t* __restrict__ index, const Extent extent,
                  const UnpackTiles tiles, int64_t rows, int cols,
                  typename Values::Value* __restrict__ weight) {
  constexpr int kChunk = sizeof(uint4) / sizeof(typename Values::Value);
  FS_SHARED(uint32_t, used, kUnpackRows* kUnpackWords);
  FS_SHARED(uint32_t, before, kUnpackRows* kUnpackWords);
  const int warp = threadIdx.x / kLanes;
  const UnpackPart part = unpack_part(extent, tiles, rows, cols);
  const int words = (part.cols + 31) / 32;

  for (int i = threadIdx.x; i < part.groups * kUnpackWords; i += kUnpackThreads) used[i] = 0;
  __syncthreads();
  set_used(index, part, extent, used);
  __syncthreads();
  for (int group = warp; group < part.groups; group += kUnpackWarps) {
    count_before(used + group * kUnpackWords, words, before + group * kUnpackWords);
  }
  __syncthreads();

  const bool whole = cols % kChunk == 0 && reinterpret_cast<uintptr_t>(weight) % sizeof(uint4) == 0;
  for (int r = warp; r < part.rows; r += kUnpackWarps) {
    const int group = (r >> extent.length_shift) * kUnpackWords;
    const auto row = stored.row(part.row + r);
    auto* const to = weight + ((part.row + r) * int64_t{cols} + part.col);
    if (whole) {
      write_row<kChunk>(row, part, extent.n, used + group, before + group, to);
    } else {
      write_row<1>(row, part, extent.n, used + group, before + group, to);
    }
  }
}

}  // namespace flashsparse::nm_vector
