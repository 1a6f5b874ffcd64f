# SPDX-License-Identifier: Apache-2.0
"""The executables' face: environment and stdin in, result or error JSON out."""
