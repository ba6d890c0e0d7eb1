// SPDX-License-Identifier: Apache-2.0
// Applies the scales of groups of columns, which are stored in the units. For few tokens the
// products of a group have their own accumulators, which are multiplied by the scales in fp32 and
// then added. For more tokens that would take more instructions, and more registers than there are;
// then values are multiplied by the scales, and rounded, before the product.
//
// For 16 rows, a lane scales four accumulators for every 8 tokens and group, or four words of
// values for every step, of which a group has one to four.
#pragma once
#include "common/mma.cuh"
#include "common/widen.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/linear_shared.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// The scales of a lane's two rows, for one or more groups, of all units of a warp. Place says where
// in shared memory a unit has them (UnitPlace).
template <class Type, class Shape, class Place>
class GroupScales {
 public:
  static constexpr UnitLayout kUnit = Place::kLayout;
  static constexpr int kGroupSteps = kUnit.group / kStepCols;

  // `units`: shared address of this lane's bytes.
  __device__ __forceinline__ explicit GroupScales(uint32_t units) {
    // One matrix for each unit and group, whose rows are alternately the upper and the lower half
    // of the unit's scales: transposed, it gives a lane the scales of its two rows.
    const int lane = threadIdx.x % 32, unit = lane / 8 % kUnits;
    const int group = min(lane / 8 / kUnits, kGroups - 1);
    place_ = units - lane * kLaneBytes + unit * Place::kBytes + Place::kScales +
             group * kGroupBytes + lane % 2 * kUnitRows;
  }

  // Loads scales before the first step of their group.
  __device__ __forceinline__ void load(int step) {
    if (step % (kHeld * kGroupSteps) == 0) {
      ldmatrix_x4<true>(words_, place_ + step / kGroupSteps * kGroupBytes);
    }
  }
  // The scales of both rows, that of the upper one in the lower half.
  __device__ __forceinline__ uint32_t of(int unit, int step) const {
    return words_[step / kGroupSteps % kHeld * kUnits + unit];
  }

 private:
  static constexpr int kUnits = Shape::kRowUnits, kGroups = kUnitCols / kUnit.group;
  static constexpr int kHeld = 4 / kUnits;  // groups that are loaded at once
  static constexpr uint32_t kGroupBytes = kUnitRows * 2;

  uint32_t place_, words_[4];
};

enum class Scaled { kNever, kSums, kCodes };

// Accumulators are scaled where that takes fewer instructions, or as many.
template <class Shape, class Place>
inline constexpr Scaled kScaled =
    Place::kLayout.group == 0                                                      ? Scaled::kNever
    : Shape::kTokens == 8 || (Shape::kTokens == 16 && Place::kLayout.group == 128) ? Scaled::kSums
                                                                                   : Scaled::kCodes;

// The accumulators of the units that a warp multiplies at once.
template <class Type, class Shape, class Place, Scaled scaled = kScaled<Shape, Place>>
class GroupSums {  // nothing is scaled
 public:
  using Tile = mma_units::SumsTile<Shape>;

  __device__ __forceinline__ GroupSums(Tile& sums, uint32_t) : sums_(sums) {}
  // Scales a unit's fragments of a step before they are multiplied.
  template <class... Fragments>
  __device__ __forceinline__ void scale(int, int, Fragments&...) {}
  // The accumulators for the products of a step.
  __device__ __forceinline__ Tile& begin(int) { return sums_; }
  __device__ __forceinline__ void end(int) {}

 private:
  Tile& sums_;
};

template <class Type, class Shape, class Place>
class GroupSums<Type, Shape, Place, Scaled::kSums> {
 public:
  using Tile = mma_units::SumsTile<Shape>;
  using Scales = GroupScales<Type, Shape, Place>;

  __device__ __forceinline__ GroupSums(Tile& sums, uint32_t units) : sums_(sums), scales_(units) {}
  template <class... Fragments>
  __device__ __forceinline__ void scale(int, int, Fragments&...) {}
  __device__ __forceinline__ Tile& begin(int step) {
    scales_.load(step);
    if (step % Scales::kGroupSteps == 0) mma_units::clear<Shape>(of_group_);
    return of_group_;
  }
  __device__ __forceinline__ void end(int step) {
    if (step % Scales::kGroupSteps != Scales::kGroupSteps - 1) return;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const uint32_t scales = scales_.of(m, step);
      const float upper = to_float<Type>(static_cast<uint16_t>(scales));
      const float lower = to_float<Type>(static_cast<uint16_t>(scales >> 16));
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 8 * 4; ++i) {
        sums_[m][i / 4][i % 4] += (i % 4 < 2 ? upper : lower) * of_group_[m][i / 4][i % 4];
      }
    }
  }

 private:
  Tile& sums_;
  Tile of_group_;
  Scales scales_;
};

template <class Type, class Shape, class Place>
class GroupSums<Type, Shape, Place, Scaled::kCodes> {
 public:
  using Tile = mma_units::SumsTile<Shape>;
  using Scales = GroupScales<Type, Shape, Place>;

  __device__ __forceinline__ GroupSums(Tile& sums, uint32_t units) : sums_(sums), scales_(units) {}
  template <class... Fragments>
  __device__ __forceinline__ void scale(int unit, int step, Fragments&... a) {
    if (unit == 0) scales_.load(step);
    const uint32_t scales = scales_.of(unit, step);
    (multiply(a, prmt(scales, 0, 0x1010), prmt(scales, 0, 0x3232)), ...);
  }
  __device__ __forceinline__ Tile& begin(int) { return sums_; }
  __device__ __forceinline__ void end(int) {}

 private:
  static __device__ __forceinline__ void multiply(uint32_t (&a)[4], uint32_t upper,
                                                  uint32_t lower) {
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = fma_two<Type>(a[i], i % 2 == 0 ? upper : lower, 0x80008000);  // plus -0
    }
  }

  Tile& sums_;
  Scales scales_;
};

}  // namespace flashsparse::sparse_24
