# SPDX-License-Identifier: Apache-2.0
"""Models on the Hugging Face Hub."""
