// SPDX-License-Identifier: Apache-2.0
// What plans know of a GPU: what it can do, by its compute capability, and how fast it is. A GPU
// whose rates are known is one row of kGpus.
#pragma once
#include <cstdint>
#include <tuple>

namespace flashsparse {

struct Gpu {
  int multiprocessors;
  int64_t shared_bytes;      // of shared memory, that one block may have
  int major = 8, minor = 0;  // compute capability
  // Bytes a microsecond that memory gives by its clock and width; 0 where it is not known.
  double bus = 0;
  // Rates that estimates of time need, 0 where they are not known: bytes a microsecond that kernels
  // read from memory and from the L2, clocks a microsecond under load, and operations a microsecond
  // that the library reaches on 16-bit products.
  double memory = 0, l2 = 0, clock = 0, arithmetic = 0;

  // What our kernels use where it is there. (Later GPUs launch clusters and dependent kernels, too,
  // but none of these was tried on one.)
  constexpr bool has_wgmma() const { return major == 9; }
  constexpr bool has_clusters() const { return major == 9; }
  constexpr bool has_dependent_launch() const { return major == 9; }
  // Whether mma multiplies e4m3.
  constexpr bool has_fp8_mma() const { return major == 12 || (major == 8 && minor == 9); }
  // Of a multiprocessor, for float32.
  constexpr int fma_units() const { return major == 8 && minor == 0 ? 64 : 128; }

  // Blocks with `bytes` of shared memory that a multiprocessor holds: it has little more than one
  // block may have, and keeps 1 KB for each.
  constexpr int64_t blocks_by_shared(int64_t bytes) const {
    constexpr int64_t kReserved = 1024;
    return (shared_bytes + kReserved) / (bytes + kReserved);
  }

  // All of it, to tell one GPU from another.
  constexpr auto members() const {
    return std::make_tuple(multiprocessors, shared_bytes, major, minor, bus, memory, l2, clock,
                           arithmetic);
  }
};

// Shared memory that one block may have, by compute capability.
constexpr int64_t shared_bytes_of(int major, int minor) {
  const int kilobytes = major == 9 || major == 10 ? 227 : major == 8 && minor == 0 ? 163 : 99;
  return int64_t{kilobytes} << 10;
}

struct NamedGpu {
  const char* name;  // part of what torch calls such a GPU
  Gpu gpu;
};

// Of the H200 memory, L2, clock and arithmetic were measured (benchmarks/results/nvidia-h200), and
// of the H100 the clock; all other rates but the bus are estimates from data sheets.
inline constexpr NamedGpu kGpus[] = {
    {"H200", {132, shared_bytes_of(9, 0), 9, 0, 4.916736e6, 4.6e6, 9.4e6, 1980, 800e6}},
    {"H100", {132, shared_bytes_of(9, 0), 9, 0, 3.35232e6, 3.2e6, 8.0e6, 1980, 700e6}},
    {"A100", {108, shared_bytes_of(8, 0), 8, 0, 2.03904e6, 1.75e6, 4.0e6, 1350, 230e6}},
};

}  // namespace flashsparse
