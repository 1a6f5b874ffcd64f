# SPDX-License-Identifier: Apache-2.0
"""Whole networks: chains of plugins, how each is run, what is remembered of it."""
