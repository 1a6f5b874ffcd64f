# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: a table of black-box cases, run against plugin executables of anybody."""
