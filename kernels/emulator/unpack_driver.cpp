// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, num_words, seed; int32 offsets[tiles + 1]; uint32 words[num_words]
//   answer  uint16 weight[rows * cols]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cuda/tiled_csl_unpack.cuh"

namespace {

using namespace flashsparse::tiled_csl;

// As torch's allocator gives it: aligned, and of exactly this size.
template <class T>
std::unique_ptr<T[], decltype(&std::free)> device_array(size_t count) {
  void* place = nullptr;
  if (posix_memalign(&place, 64, count * sizeof(T)) != 0) std::abort();
  return {static_cast<T*>(place), &std::free};
}

template <class T>
void read(T* to, size_t count) {
  if (std::fread(to, sizeof(T), count, stdin) != count) std::abort();
}

}  // namespace

int main() {
  int64_t header[4];
  while (std::fread(header, sizeof header, 1, stdin) == 1) {
    const auto [rows, cols, num_words, seed] = header;
    const int64_t tiles = tile_rows(rows) * tile_cols(cols);
    const auto offsets = device_array<int32_t>(tiles + 1);
    const auto words = device_array<uint32_t>(num_words);
    const auto weight = device_array<uint16_t>(rows * cols);
    read(offsets.get(), tiles + 1);
    read(words.get(), num_words);
    simt::launch(tiles, kUnpackThreads, seed, [&, rows = rows, cols = cols, num_words = num_words] {
      unpack_kernel(words.get(), num_words, offsets.get(), rows, cols, weight.get());
    });
    std::fwrite(weight.get(), sizeof(uint16_t), rows * cols, stdout);
  }
}
