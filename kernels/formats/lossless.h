// SPDX-License-Identifier: Apache-2.0
// lossless, version 1: every bf16 weight in 12 bits, bit for bit; the layout that packer, CPU and
// CUDA kernels share. docs/lossless.md is our specification and credits earlier work.
//
// An element is its sign, its 7 fraction bits and a code of 4 bits. Code c = 1 .. 15 stands for the
// biased exponent base + c, where base is that of the element's row; code 0 with fraction 0 stands
// for +0 or -0. Every other element is an exception: its code, sign and fraction are 0, and its 16
// bits are listed, by row and rising column: exponents outside of the row's window, subnormal
// numbers, infinities and NaN.
//
//   weight_packed             uint8 [rows, 192 * chunks], chunks = ceil(columns / 128)
//   weight_base               uint8 [rows], at most kMostBase: no code is an infinity or NaN
//   weight_exception_rows     int32 [rows + 1], where the exceptions of each row begin
//   weight_exception_columns  int32 [exceptions], rising strictly in a row
//   weight_exceptions         int16 [exceptions], bits of bf16
//
// A chunk is 128 columns of one row in 192 bytes: 128 bytes of sign (bit 7) and fraction, column by
// column, then 64 bytes of codes: byte j holds that of column j in bits 0-3 and that of column
// 64 + j in bits 4-7. Bytes and codes past the last column are 0.
//
// The packer's base (canonical: every packer writes the same file) is the smallest one whose window
// of 15 exponents holds the most elements of the row; of a row of zeros it is 0.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::lossless {

inline constexpr int kChunkColumns = 128;
inline constexpr int kChunkCodes = 64;  // bytes, behind kChunkColumns bytes of sign and fraction
inline constexpr int kChunkBytes = kChunkColumns + kChunkCodes;
inline constexpr int kMostCode = 15;
inline constexpr int kMostBase = 254 - kMostCode;

FS_HOST_DEVICE constexpr int64_t chunks(int64_t columns) {
  return (columns + kChunkColumns - 1) / kChunkColumns;
}
FS_HOST_DEVICE constexpr int64_t row_bytes(int64_t columns) {
  return chunks(columns) * kChunkBytes;
}

FS_HOST_DEVICE constexpr uint32_t exponent_of(uint16_t bits) { return bits >> 7 & 0xff; }
FS_HOST_DEVICE constexpr uint8_t sign_and_fraction(uint16_t bits) {
  return static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7f));
}

// The code of an element, or 0 for zeros and exceptions.
FS_HOST_DEVICE constexpr uint32_t code_of(uint16_t bits, uint32_t base) {
  const uint32_t code = exponent_of(bits) - base;  // wraps around below the window
  return code <= kMostCode ? code : 0;
}
FS_HOST_DEVICE constexpr bool is_exception(uint16_t bits, uint32_t base) {
  return exponent_of(bits) - base - 1 >= kMostCode && (bits & 0x7fff) != 0;
}

FS_HOST_DEVICE constexpr uint16_t bits_of(uint32_t sign_and_fraction, uint32_t code,
                                          uint32_t base) {
  return static_cast<uint16_t>((sign_and_fraction & 0x80) << 8 | (code ? base + code : 0) << 7 |
                               (sign_and_fraction & 0x7f));
}

}  // namespace flashsparse::lossless
