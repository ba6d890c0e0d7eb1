// SPDX-License-Identifier: Apache-2.0
// Sums up the lengths of every case on stdin and writes the offsets to stdout.
//   case    int64 parts, seed; int32 lengths[parts]
//   answer  int64 total; int32 offsets[parts + 1]
#include <cstdint>

#include "emulator/offsets.h"

using namespace driver;

int main() {
  int64_t header[2];
  while (read_header(header)) {
    const auto lengths = read<int32_t>(header[0]);
    const auto summed = sum_offsets(lengths.get(), header[0], static_cast<unsigned>(header[1]));
    write(&summed.total, 1);
    write(summed.offsets.get(), header[0] + 1);
  }
}
