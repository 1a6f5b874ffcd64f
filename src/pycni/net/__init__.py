# SPDX-License-Identifier: Apache-2.0
"""Recipes over the kernel: what plugins make, find again by its owner, and remove."""
