# SPDX-License-Identifier: Apache-2.0
"""Typed configurations of the built-in plugins."""
