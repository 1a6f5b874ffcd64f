/* SPDX-License-Identifier: Apache-2.0
 *
 * The one function of bcryptprimitives.dll that gRPC's TLS needs and Debian's wine lacks.
 */
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T size) {
    return RtlGenRandom(data, (ULONG)size);
}
