// SPDX-License-Identifier: Apache-2.0
// Vectors of fp32 as wide as those of the instruction set, by the compiler's vector types: one
// source, compiled once in each folder with its own flags. Everything has internal linkage (see
// README.md).
#pragma once
#include <cstdint>

#include "common/dtype.h"

namespace {

using flashsparse::Dtype;

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));

// Vectors are passed by reference: passing by value depends on the flags.
#define FS_VECTOR_INLINE inline __attribute__((always_inline))

FS_VECTOR_INLINE void load(const float* from, Floats& to) {
  __builtin_memcpy(&to, from, sizeof to);
}
FS_VECTOR_INLINE void store(const Floats& from, float* to) {
  __builtin_memcpy(to, &from, sizeof from);
}

FS_VECTOR_INLINE void widen(const void* row, int64_t first, Dtype dtype, Floats& to) {
  if (dtype == Dtype::kFloat32) return load(static_cast<const float*>(row) + first, to);
  Halves half;
  __builtin_memcpy(&half, static_cast<const uint16_t*>(row) + first, sizeof half);
  const Words bits = __builtin_convertvector(half, Words);
  if (dtype == Dtype::kBFloat16) {
    to = reinterpret_cast<Floats>(bits << 16);
    return;
  }
  // Moves exponent and fraction to their position; 2^112 corrects the exponent's bias to that of
  // fp32, also for subnormals. Infinities and NaN keep all their exponent bits.
  const Words magnitude = bits & 0x7fff;
  const Floats value = reinterpret_cast<Floats>(magnitude << 13) * 0x1p112f;
  const Words special = reinterpret_cast<Words>(magnitude >= 0x7c00) & 0x7f800000;
  to = reinterpret_cast<Floats>(reinterpret_cast<Words>(value) | special | (bits & 0x8000) << 16);
}

// Any number of values.
FS_VECTOR_INLINE void widen_all(const void* from, Dtype dtype, int64_t count, float* to) {
  Floats floats;
  int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    widen(from, first, dtype, floats);
    store(floats, to + first);
  }
  if (first == count) return;
  const int64_t bytes = dtype == Dtype::kFloat32 ? 4 : 2;
  char rest[sizeof(Floats)] = {};
  __builtin_memcpy(rest, static_cast<const char*>(from) + first * bytes, (count - first) * bytes);
  widen(rest, 0, dtype, floats);
  for (int64_t i = 0; first + i < count; ++i) to[first + i] = floats[i];
}

}  // namespace
