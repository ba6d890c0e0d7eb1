// SPDX-License-Identifier: Apache-2.0
// The op that tells products whether kernels of others signal launch_dependents.
#include "bindings/early_begin.h"

namespace flashsparse {
namespace {

bool begin_early(bool behind_others) { return others_let_begin.exchange(behind_others); }

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("begin_early", TORCH_BOX(&begin_early));
}

}  // namespace
}  // namespace flashsparse
