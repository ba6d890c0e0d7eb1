# SPDX-License-Identifier: Apache-2.0
"""Installed as `flashsparse_plugin.integrations`."""
