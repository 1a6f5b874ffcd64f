# SPDX-License-Identifier: Apache-2.0
"""Code generated from proto/ by tools/generate_proto.py; not edited by hand."""
