# SPDX-License-Identifier: Apache-2.0
"""The gRPC face: cni.v2alpha1 on unix sockets."""
