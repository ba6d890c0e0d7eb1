// SPDX-License-Identifier: Apache-2.0
// Runs the validate kernel over every case on stdin and writes its verdicts to stdout.
//   case    int64 rows, cols, num_words, seed; int32 offsets[tiles + 1]; uint32 words[num_words]
//   answer  int32 verdicts[tiles]
#include <cstdint>

#include "cuda/tiled_csl_validate.cuh"
#include "emulator/driver.h"

using namespace flashsparse::tiled_csl;
using namespace driver;

int main() {
  int64_t header[4];
  while (read_header(header)) {
    const auto [rows, cols, num_words, seed] = header;
    const int64_t tiles = tile_rows(rows) * tile_cols(cols);
    const auto offsets = device_array<int32_t>(tiles + 1);
    const auto words = device_array<uint32_t>(num_words);
    const auto verdicts = device_array<int32_t>(tiles);
    read(offsets.get(), tiles + 1);
    read(words.get(), num_words);
    simt::launch(tiles, kValidateThreads, seed,
                 [&, rows = rows, cols = cols, num_words = num_words] {
                   validate_kernel(words.get(), static_cast<int32_t>(num_words), offsets.get(),
                                   rows, cols, verdicts.get());
                 });
    write(verdicts.get(), tiles);
  }
}
