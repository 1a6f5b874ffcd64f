# SPDX-License-Identifier: Apache-2.0
"""The Linux kernel's side of networking: namespaces, netlink, sysctls, nftables, conntrack."""
