// SPDX-License-Identifier: Apache-2.0
// Runs the validate kernel over every case on stdin (case.h) and writes what it finds to stdout:
// int64 nonzeros, and the number of the first broken block of the weight (verdict.h).
#include "cuda/nm_vector/validate.cuh"
#include "emulator/nm_vector/case.h"

int main(int argc, char** argv) {
  using namespace flashsparse;
  using namespace flashsparse::nm_vector;
  const driver::Counting counting(argc, argv);
  while (const auto given = driver::read_nm_vector_case()) {
    const auto fields = Fields::of(given->type, given->dtype == Dtype::kFloat32 ? 4 : 2);
    const int64_t blocks = given->blocks
                               ? given->blocks
                               : validate_blocks(fields, given->pattern, given->rows, given->cols);
    const auto found = driver::device_array<Found>(blocks);
    simt::launch(static_cast<unsigned>(blocks), kValidateThreads, given->seed, [&] {
      validate_kernel(given->values.get(), given->index.get(), fields, given->extent(), given->rows,
                      static_cast<int>(given->cols), found.get());
    });
    const Found all = join(found.get(), blocks);
    driver::write(&all, 1);
  }
}
