# SPDX-License-Identifier: Apache-2.0
"""Side-by-side measurements of pycni and the Go reference plugins; run with `make bench`."""
