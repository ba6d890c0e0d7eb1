// SPDX-License-Identifier: Apache-2.0
#include "bindings/override.h"
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

// They take no tensor from which a device could be chosen.
STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("override_launch", TORCH_BOX(&override_launch));
  m.impl("end_override", TORCH_BOX(&end_override));
}

}  // namespace
}  // namespace flashsparse
