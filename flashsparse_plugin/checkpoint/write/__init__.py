# SPDX-License-Identifier: Apache-2.0
"""Writing a model directory: shards, checksums, the files beside them, and staging of it all."""
