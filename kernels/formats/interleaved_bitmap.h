// SPDX-License-Identifier: Apache-2.0
// Interleaved bitmap: the runtime form of every unstructured format on a CPU. Never written to
// disk. It is the panels of a weight (formats/panel.h), one after the other.
//
//   masks          uint32 [panels][column pairs]
//   values         uint16 or uint32 [nonzeros + kValueSlack]   panel after panel; or int8
//   panel_offsets  int64  [panels + 1]               first value of each panel
#pragma once
#include "formats/panel.h"
