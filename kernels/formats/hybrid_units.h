// SPDX-License-Identifier: Apache-2.0
// hybrid_units, version 1: the runtime form of hybrid_24 on a GPU. Never written to disk. Its
// layout is that of the fragments of mma.sp (common/mma_sparse.cuh).
//
// The weight [out_features, in_features] is divided into units of 16 rows x 256 columns, each of
// them 2:4 or dense, which follow each other in row-major order in one stream, int32[words]:
//
//   a 2:4 unit:   | values: vectors | metadata: one vector              | scales, of groups |
//   a dense unit: | first halves: vectors | second halves: vectors      | scales, of groups |
//   a vector:     | lane 0 | lane 1 | ... | lane 31 |       16 bytes each
//
//   bytes of a unit   2:4    dense   and for scales by 128, 64, 32 columns
//   native, 16 bits   4608    8192
//   fp8_e4m3, int8    2560    4096   64, 128, 256
//   int4              1536    2048   64, 128, 256
//
// offsets: int32[units + 1], where each unit begins and the last one ends, in pieces of 64 bytes.
// The kind of a unit follows from its size.
//
// A 2:4 unit is one of sparse_24 (sparse_24.h). A dense one is the sum of two that have the same
// scales: of every four columns the first half keeps 0 and 1, the second half 2 and 3. Their
// metadata is the same everywhere, so it is not stored: kFirstHalf and kSecondHalf. So kernels
// multiply both kinds by mma.sp or wgmma.sp, with the same x, a dense unit twice.
//
// Every zero is +0, as is all that is past the last row or column: equal weights, of equal kinds,
// give equal units.
//
// Units of two kinds: PATCH (arXiv 2509.23410) has such tiles. The layout is our own.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"
#include "formats/sparse_24.h"

namespace flashsparse::hybrid_units {

using mma_units::kUnitCols;
using mma_units::kUnitRows;
using mma_units::unit_cols;
using mma_units::unit_rows;
using sparse_24::kLaneBytes;
using sparse_24::kStepCols;
using sparse_24::kSteps;
using sparse_24::kVectorBytes;
using sparse_24::UnitLayout;

inline constexpr int kPieceBytes = 64;  // in which offsets count

// A word of metadata of each half of a dense unit.
inline constexpr uint32_t kFirstHalf = 0x44444444;   // columns 0 and 1 of every four
inline constexpr uint32_t kSecondHalf = 0xeeeeeeee;  // columns 2 and 3

FS_HOST_DEVICE constexpr int scale_bytes(UnitLayout unit) { return unit.bytes() - unit.scales(); }
// Whole vectors, which scales follow.
FS_HOST_DEVICE constexpr int vector_bytes(UnitLayout unit, bool dense) {
  return dense ? 2 * unit.metadata() : unit.scales();
}
FS_HOST_DEVICE constexpr int unit_bytes(UnitLayout unit, bool dense) {
  return vector_bytes(unit, dense) + scale_bytes(unit);
}
// Of a unit between two offsets.
FS_HOST_DEVICE constexpr bool is_dense(UnitLayout unit, int32_t begin, int32_t end) {
  return end - begin > unit_bytes(unit, false) / kPieceBytes;
}

}  // namespace flashsparse::hybrid_units
