// SPDX-License-Identifier: Apache-2.0
// Interleaved bitmap: the form in which every unstructured format runs on a CPU. Never on disk.
// It is the panels of a weight (formats/panel.h), one after the other.
//
//   masks          uint32 [panels][column pairs]
//   values         uint16 or uint32 [nonzeros + kValueSlack]   panel after panel; or int8: codes
//   panel_offsets  int64  [panels + 1]               first value of each panel
#pragma once
#include "formats/panel.h"
