/* SPDX-License-Identifier: Apache-2.0
 *
 * Stand-ins for computenetwork.dll and vmcompute.dll with their real binary interface.
 *
 * They know nothing: each function sends its name and inputs over loopback TCP to a simulator
 * (pycni.testing.hns_forwarder) and returns what comes back, strings in memory the caller must
 * free with CoTaskMemFree. On Windows the prototypes are those of mingw-w64's computenetwork.h, so
 * a wrong one does not compile. On Linux the same source makes one ELF library of all of it.
 *
 *   x86_64-w64-mingw32-gcc -shared -o computenetwork.dll fakehns.c fakehns.def -lws2_32 -lole32
 *   x86_64-w64-mingw32-gcc -shared -o vmcompute.dll vmcompute.def    (forwards to the first)
 *   gcc -shared -fPIC -o libfakehns.so fakehns.c
 *
 * The address is taken from FAKEHNS_ADDR (host:port) at each call, one connection per call, so a
 * call that the simulator holds up holds up no other. FakeHnsOutstanding() counts the strings
 * handed out and not freed: on Linux CoTaskMemFree is our own, on Windows a malloc spy watches.
 *
 * Frame, little-endian: u32 length, then for a request u16 name length, name, 16 bytes of GUID as
 * they lay in memory, u64 handle, u16 count, and per text u32 units and UTF-16 units; for a reply
 * i32 HRESULT, u64 handle, and twice (text, record) u32 units and units, units 0xffffffff = NULL.
 */
#ifdef _WIN32
#define COBJMACROS
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <computenetwork.h>
typedef SOCKET sock_t;
#define EXPORT __declspec(dllexport)
#define close_socket closesocket
#else
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#define EXPORT __attribute__((visibility("default")))
#define WINAPI
#define close_socket close
typedef int sock_t;
typedef int HRESULT;
typedef unsigned short WCHAR;
typedef const WCHAR *PCWSTR;
typedef WCHAR *PWSTR;
typedef const unsigned char *REFGUID;
typedef void *HCN_NETWORK, *HCN_ENDPOINT, *HCN_NAMESPACE, *HCN_LOADBALANCER;
typedef void **PHCN_NETWORK, **PHCN_ENDPOINT, **PHCN_NAMESPACE, **PHCN_LOADBALANCER;
#endif
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *HCS_HANDLE;

#define RPC_UNAVAILABLE ((HRESULT)0x800706BA)
#define NIL_TEXT 0xffffffffu

/* Memory handed to the caller. */

static volatile long outstanding;

#ifdef _WIN32
#define MOST 4096
static CRITICAL_SECTION guard;
static void *given[MOST]; /* strings not freed yet */

static int forget(void *block) {
    int found = 0;
    EnterCriticalSection(&guard);
    for (int i = 0; i < MOST && !found; i++)
        if (given[i] == block) given[i] = NULL, found = 1;
    LeaveCriticalSection(&guard);
    return found;
}

/* A malloc spy sees every CoTaskMemFree of the process; only PreFree matters here. */
static HRESULT WINAPI spy_query(IMallocSpy *self, REFIID id, void **out) {
    (void)id;
    *out = self;
    return S_OK;
}
static ULONG WINAPI spy_ref(IMallocSpy *self) { (void)self; return 1; }
static SIZE_T WINAPI spy_pre_alloc(IMallocSpy *self, SIZE_T size) { (void)self; return size; }
static void *WINAPI spy_post_alloc(IMallocSpy *self, void *block) { (void)self; return block; }
static void *WINAPI spy_pre_free(IMallocSpy *self, void *block, BOOL spied) {
    (void)self, (void)spied;
    if (block && forget(block)) InterlockedDecrement(&outstanding);
    return block;
}
static void WINAPI spy_post_free(IMallocSpy *self, BOOL spied) { (void)self, (void)spied; }
static SIZE_T WINAPI spy_pre_realloc(IMallocSpy *self, void *block, SIZE_T size, void **new_block,
                                     BOOL spied) {
    (void)self, (void)spied;
    *new_block = block;
    return size;
}
static void *WINAPI spy_post_realloc(IMallocSpy *self, void *block, BOOL spied) {
    (void)self, (void)spied;
    return block;
}
static void *WINAPI spy_pre(IMallocSpy *self, void *block, BOOL spied) {
    (void)self, (void)spied;
    return block;
}
static SIZE_T WINAPI spy_post_size(IMallocSpy *self, SIZE_T size, BOOL spied) {
    (void)self, (void)spied;
    return size;
}
static int WINAPI spy_post_did(IMallocSpy *self, void *block, BOOL spied, int actual) {
    (void)self, (void)block, (void)spied;
    return actual;
}
static void WINAPI spy_minimise(IMallocSpy *self) { (void)self; }
static IMallocSpyVtbl spy_table = {
    spy_query, spy_ref, spy_ref, spy_pre_alloc, spy_post_alloc, spy_pre_free, spy_post_free,
    spy_pre_realloc, spy_post_realloc, spy_pre, spy_post_size, spy_pre, spy_post_did, spy_minimise,
    spy_minimise,
};
static IMallocSpy spy = {&spy_table};

BOOL WINAPI DllMain(HINSTANCE instance, DWORD reason, void *reserved) {
    (void)instance, (void)reserved;
    if (reason == DLL_PROCESS_ATTACH) {
        WSADATA data;
        InitializeCriticalSection(&guard);
        WSAStartup(MAKEWORD(2, 2), &data);
    }
    return TRUE;
}

static void *give(size_t size) {
    static LONG spying;
    if (!InterlockedExchange(&spying, 1)) CoRegisterMallocSpy(&spy);
    void *block = CoTaskMemAlloc(size);
    EnterCriticalSection(&guard);
    for (int i = 0; i < MOST; i++)
        if (!given[i]) {
            given[i] = block;
            break;
        }
    LeaveCriticalSection(&guard);
    InterlockedIncrement(&outstanding);
    return block;
}
#else
static void *give(size_t size) {
    __sync_fetch_and_add(&outstanding, 1);
    return malloc(size);
}

EXPORT void CoTaskMemFree(void *block) {
    if (block) __sync_fetch_and_sub(&outstanding, 1);
    free(block);
}
#endif

EXPORT long FakeHnsOutstanding(void) { return outstanding; }

/* The wire. */

static sock_t dial(void) {
    char value[64] = "";
#ifdef _WIN32
    GetEnvironmentVariableA("FAKEHNS_ADDR", value, sizeof value);
#else
    const char *found = getenv("FAKEHNS_ADDR");
    if (found) snprintf(value, sizeof value, "%s", found);
#endif
    char *colon = strchr(value, ':');
    if (!colon) return (sock_t)-1;
    *colon = 0;
    struct sockaddr_in peer = {0};
    peer.sin_family = AF_INET;
    peer.sin_port = htons((unsigned short)atoi(colon + 1));
    peer.sin_addr.s_addr = inet_addr(value);
    sock_t link = socket(AF_INET, SOCK_STREAM, 0);
    if (link != (sock_t)-1 && connect(link, (struct sockaddr *)&peer, sizeof peer)) {
        close_socket(link);
        return (sock_t)-1;
    }
    return link;
}

static int send_all(sock_t link, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        int sent = (int)send(link, at, (int)(size > 65536 ? 65536 : size), 0);
        if (sent <= 0) return 0;
        at += sent, size -= (size_t)sent;
    }
    return 1;
}

static int read_all(sock_t link, void *data, size_t size) {
    char *at = data;
    while (size) {
        int got = (int)recv(link, at, (int)(size > 65536 ? 65536 : size), 0);
        if (got <= 0) return 0;
        at += got, size -= (size_t)got;
    }
    return 1;
}

static uint32_t units_of(PCWSTR text) {
    uint32_t units = 0;
    while (text[units]) units++;
    return units;
}

/* Read one returned string; it goes to `out`, or is dropped when nobody asked for it. */
static int read_text(sock_t link, PWSTR *out) {
    uint32_t units;
    if (!read_all(link, &units, 4)) return 0;
    if (units == NIL_TEXT) return 1;
    PWSTR text = out ? give(((size_t)units + 1) * 2) : malloc(((size_t)units + 1) * 2);
    if (!read_all(link, text, (size_t)units * 2)) units = 0;
    text[units] = 0;
    if (out) *out = text;
    else free(text);
    return 1;
}

static HRESULT forward(const char *name, const void *guid, void *handle, int count,
                       PCWSTR *texts, void **new_handle, PWSTR *text, PWSTR *record) {
    static const unsigned char nil[16];
    uint16_t name_size = (uint16_t)strlen(name), texts_count = (uint16_t)count;
    uint64_t number = (uint64_t)(uintptr_t)handle;
    uint32_t size = 2 + name_size + 16 + 8 + 2;
    int32_t hresult = RPC_UNAVAILABLE;
    if (new_handle) *new_handle = NULL;
    if (text) *text = NULL;
    if (record) *record = NULL;
    for (int i = 0; i < count; i++) size += 4 + units_of(texts[i]) * 2;
    sock_t link = dial();
    if (link == (sock_t)-1) return RPC_UNAVAILABLE;
    int ok = send_all(link, &size, 4) && send_all(link, &name_size, 2) &&
             send_all(link, name, name_size) && send_all(link, guid ? guid : nil, 16) &&
             send_all(link, &number, 8) && send_all(link, &texts_count, 2);
    for (int i = 0; ok && i < count; i++) {
        uint32_t units = units_of(texts[i]);
        ok = send_all(link, &units, 4) && send_all(link, texts[i], (size_t)units * 2);
    }
    ok = ok && read_all(link, &size, 4) && read_all(link, &hresult, 4) &&
         read_all(link, &number, 8) && read_text(link, text) && read_text(link, record);
    if (ok && new_handle) *new_handle = (void *)(uintptr_t)number;
    close_socket(link);
    return ok ? (HRESULT)hresult : RPC_UNAVAILABLE;
}

/* The functions. */

#define TEXTS(...) (int)(sizeof((PCWSTR[]){__VA_ARGS__}) / sizeof(PCWSTR)), (PCWSTR[]){__VA_ARGS__}

#define OBJECT(noun, type)                                                                        \
    EXPORT HRESULT WINAPI HcnEnumerate##noun##s(PCWSTR query, PWSTR *list, PWSTR *record) {       \
        return forward("HcnEnumerate" #noun "s", NULL, NULL, TEXTS(query), NULL, list, record);   \
    }                                                                                             \
    EXPORT HRESULT WINAPI HcnOpen##noun(REFGUID id, P##type handle, PWSTR *record) {              \
        return forward("HcnOpen" #noun, id, NULL, 0, NULL, handle, NULL, record);                 \
    }                                                                                             \
    EXPORT HRESULT WINAPI HcnModify##noun(type handle, PCWSTR settings, PWSTR *record) {          \
        return forward("HcnModify" #noun, NULL, handle, TEXTS(settings), NULL, NULL, record);     \
    }                                                                                             \
    EXPORT HRESULT WINAPI HcnQuery##noun##Properties(type handle, PCWSTR query, PWSTR *list,      \
                                                     PWSTR *record) {                             \
        return forward("HcnQuery" #noun "Properties", NULL, handle, TEXTS(query), NULL, list,     \
                       record);                                                                   \
    }                                                                                             \
    EXPORT HRESULT WINAPI HcnDelete##noun(REFGUID id, PWSTR *record) {                            \
        return forward("HcnDelete" #noun, id, NULL, 0, NULL, NULL, NULL, record);                 \
    }                                                                                             \
    EXPORT HRESULT WINAPI HcnClose##noun(type handle) {                                           \
        return forward("HcnClose" #noun, NULL, handle, 0, NULL, NULL, NULL, NULL);                \
    }

#define CREATE(noun, type)                                                                        \
    EXPORT HRESULT WINAPI HcnCreate##noun(REFGUID id, PCWSTR settings, P##type handle,            \
                                          PWSTR *record) {                                        \
        return forward("HcnCreate" #noun, id, NULL, TEXTS(settings), handle, NULL, record);       \
    }

OBJECT(Network, HCN_NETWORK)
CREATE(Network, HCN_NETWORK)
OBJECT(Endpoint, HCN_ENDPOINT)
OBJECT(Namespace, HCN_NAMESPACE)
CREATE(Namespace, HCN_NAMESPACE)
OBJECT(LoadBalancer, HCN_LOADBALANCER)
CREATE(LoadBalancer, HCN_LOADBALANCER)

EXPORT HRESULT WINAPI HcnCreateEndpoint(HCN_NETWORK network, REFGUID id, PCWSTR settings,
                                        PHCN_ENDPOINT handle, PWSTR *record) {
    return forward("HcnCreateEndpoint", id, network, TEXTS(settings), handle, NULL, record);
}

EXPORT HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response) {
    return forward("HNSCall", NULL, NULL, TEXTS(method, path, object), NULL, response, NULL);
}

EXPORT HRESULT WINAPI HcsOpenComputeSystem(PCWSTR id, HCS_HANDLE *handle, PWSTR *result) {
    return forward("HcsOpenComputeSystem", NULL, NULL, TEXTS(id), handle, NULL, result);
}

EXPORT HRESULT WINAPI HcsModifyComputeSystem(HCS_HANDLE handle, PCWSTR change, PWSTR *result) {
    return forward("HcsModifyComputeSystem", NULL, handle, TEXTS(change), NULL, NULL, result);
}

EXPORT HRESULT WINAPI HcsCloseComputeSystem(HCS_HANDLE handle) {
    return forward("HcsCloseComputeSystem", NULL, handle, 0, NULL, NULL, NULL, NULL);
}
