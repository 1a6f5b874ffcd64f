# SPDX-License-Identifier: Apache-2.0
"""The Windows host networking service: HCN (schema 2) and HNS (schema 1).

From the bottom up: `abi` speaks to the two DLLs, `calls` puts deadlines, retries and typed errors
on it, `schemas` are the documents, `hcn` and `hns` the typed clients, `policies` the translation
between both schemas. Nothing here needs Windows to import.
"""
