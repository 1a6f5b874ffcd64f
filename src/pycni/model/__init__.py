# SPDX-License-Identifier: Apache-2.0
"""The data of CNI, pure: names, addresses, versions, configurations, results, requests."""
