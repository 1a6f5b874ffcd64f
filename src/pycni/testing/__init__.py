# SPDX-License-Identifier: Apache-2.0
"""What pycni ships for tests: simulators, snapshots and checks, for its users as for itself."""
