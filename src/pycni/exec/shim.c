/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CNI executable that asks the pycni service to do the work.
 *
 * It sends its name, the CNI environment and stdin in one frame (see framing.py) together with a
 * descriptor of CNI_NETNS, prints what comes back and exits as told. When no service listens it
 * becomes a Python interpreter that does the same work in this process (see start.py).
 *
 * `pycni install` writes the socket, the interpreter and where its packages are into its copy:
 * fixed-size fields found by their markers, so no run time file is read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define FIELD 1024
#define MARK 16
#define FRAME_VERSION 1
#define MAX_REQUEST (16u * 1024 * 1024)
#define MAX_REPLY (64u * 1024 * 1024)
#define DEFAULT_TIMEOUT_S 120
#define MAX_TIMEOUT_S 86400

static volatile const char socket_field[FIELD] = "@pycni-socket--@/run/pycni/shim.sock";
static volatile const char interpreter_field[FIELD] = "@pycni-python--@/usr/bin/python3";
static volatile const char packages_field[FIELD] = "@pycni-packages@";

/* Looking for packages, as `site` does, takes 2 ms: only for an interpreter we know nothing of. */
static const char start[] =
	"import sys\n"
	"if sys.argv[2]:\n"
	"    sys.path += sys.argv[2].split(':')\n"
	"else:\n"
	"    import site; site.main()\n"
	"try:\n"
	"    from pycni.exec.start import main\n"
	"except ImportError:\n"
	"    import json\n"
	"    msg = 'no pycni service listens and the interpreter has no pycni'\n"
	"    error = {'code': 11, 'msg': msg, 'details': sys.executable}\n"
	"    print(json.dumps(error, indent=4), end='')\n"
	"    sys.exit(1)\n"
	"main(sys.argv[1])\n";

extern char **environ;

static const char *field(volatile const char *marked) { return (const char *)marked + MARK; }

/* Print a CNI error and exit. Only the details, which may be a path, need escapes. */
static void fail(int code, const char *msg, const char *details)
{
	printf("{\n    \"code\": %d,\n    \"msg\": \"%s\",\n    \"details\": \"", code, msg);
	for (const char *at = details; *at; at++) {
		if ((unsigned char)*at < ' ')
			printf("\\u%04x", *at);
		else
			printf(*at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
	}
	printf("\"\n}");
	fflush(stdout);
	_exit(1);
}

/* The service has had its time, however busily it trickles. Only what a handler may call. */
static void expire(int signal)
{
	static const char text[] =
		"{\n    \"code\": 11,\n    \"msg\": \"the pycni service did not answer in time\",\n"
		"    \"details\": \"the call may still be running; DEL and repeat it\"\n}";

	(void)signal;
	_exit(write(STDOUT_FILENO, text, sizeof text - 1) < 0 ? 2 : 1);
}

/* A closed descriptor would become that of the socket, and stdin or stdout be the service's. */
static void occupy_standard_descriptors(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", O_PATH); /* reads and writes fail, as on a closed one */
}

/* Make `handler` run even if our parent blocks the signal. */
static void handle(int signal_number, void (*handler)(int))
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, signal_number);
	signal(signal_number, handler);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static long parse_timeout(const char *text)
{
	char *end = NULL;
	long seconds = text && *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0;

	if (seconds <= 0 || *end)
		return DEFAULT_TIMEOUT_S;
	return seconds < MAX_TIMEOUT_S ? seconds : MAX_TIMEOUT_S;
}

static void put_u32(unsigned char *at, uint32_t value)
{
	at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static uint32_t get_u32(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static int wanted(const char *variable)
{
	return !strncmp(variable, "CNI_", 4) || !strncmp(variable, "TRACEPARENT=", 12) ||
	       !strncmp(variable, "TRACESTATE=", 11) || !strncmp(variable, "BAGGAGE=", 8);
}

static int connect_service(const char *path, long timeout_s)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = timeout_s};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || strlen(path) >= sizeof address.sun_path)
		return -1;
	strcpy(address.sun_path, path);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	if (errno == EAGAIN || errno == EINPROGRESS)
		fail(11, "the pycni service accepts no connection in time", path);
	close(fd);
	return -1;
}

static void write_all(int fd, const unsigned char *data, size_t length)
{
	while (length) {
		ssize_t sent = write(fd, data, length);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			fail(11, "the pycni service stopped reading the request",
			     "look at its log, then repeat the call");
		data += sent;
		length -= sent;
	}
}

/* Send the first byte with the namespace's descriptor, then the rest. */
static void send_frame(int fd, int netns, const unsigned char *frame, size_t length)
{
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	struct iovec vector = {(void *)frame, length};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	ssize_t sent;

	if (netns >= 0) {
		memset(&control, 0, sizeof control);
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof control.bytes;
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &netns, sizeof netns);
	}
	while ((sent = sendmsg(fd, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
		;
	if (sent < 0)
		fail(11, "the pycni service refused the request", strerror(errno));
	write_all(fd, frame + sent, length - sent);
}

static void read_exactly(int fd, unsigned char *data, size_t length)
{
	while (length) {
		ssize_t got = read(fd, data, length);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			fail(11, "the pycni service did not answer in time",
			     "the call may still be running; DEL and repeat it");
		if (got <= 0)
			fail(11, "the pycni service closed the connection before it answered",
			     "look at its log, then DEL and repeat the call");
		data += got;
		length -= got;
	}
}

/* The frame: header, environment, stdin. */
static unsigned char *read_request(const char *name, size_t *length)
{
	size_t size = 65536, used = 9, env_start = used;
	unsigned char *frame = malloc(size);
	char self[300];

	snprintf(self, sizeof self, "PYCNI_PLUGIN=%s", name);
	for (char **variable = environ; frame; variable++) {
		const char *text = *variable ? *variable : self;
		size_t need = strlen(text) + 1;
		if (!*variable || wanted(text)) {
			while (frame && used + need + 1 > size)
				frame = realloc(frame, size *= 2);
			if (frame)
				memcpy(frame + used, text, need);
			used += need;
		}
		if (!*variable)
			break;
	}
	size_t env_length = used - env_start;
	const char *command = getenv("CNI_COMMAND");
	/* Without a command the answer is a text about the plugin, and stdin may be a terminal. */
	while (command && *command) {
		if (frame && used == size)
			frame = realloc(frame, size *= 2);
		if (!frame)
			fail(5, "out of memory", "");
		ssize_t got = read(STDIN_FILENO, frame + used, size - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			fail(5, "error reading from stdin", strerror(errno));
		if (got == 0)
			break;
		used += got;
		if (used - 4 > MAX_REQUEST)
			fail(6, "the network configuration on stdin is larger than 16 MiB", "");
	}
	put_u32(frame, used - 4);
	frame[4] = FRAME_VERSION;
	put_u32(frame + 5, env_length);
	*length = used;
	return frame;
}

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc ? argv[0] : "";
	const char *path = getenv("PYCNI_SHIM_SOCKET");
	const char *netns_path = getenv("CNI_NETNS");
	long timeout_s = parse_timeout(getenv("PYCNI_SHIM_TIMEOUT"));

	occupy_standard_descriptors();
	int fd = connect_service(path && *path ? path : field(socket_field), timeout_s);

	if (fd < 0) {
		/* -I: what a runtime's environment says about Python is not meant for us. */
		const char *python = field(interpreter_field), *packages = field(packages_field);
		execl(python, python, "-IS", "-c", start, name, packages, (char *)NULL);
		fail(11, "no pycni service listens and its interpreter cannot be run", python);
	}

	signal(SIGPIPE, SIG_IGN);
	size_t length;
	unsigned char *frame = read_request(name, &length);
	/* O_NONBLOCK: a path that is a FIFO by mistake must not hang the runtime. */
	int netns = netns_path && *netns_path ? open(netns_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	handle(SIGALRM, expire);
	alarm(timeout_s);
	send_frame(fd, netns, frame, length);

	unsigned char header[4];
	read_exactly(fd, header, sizeof header);
	uint32_t body_length = get_u32(header);
	unsigned char *body = body_length >= 5 && body_length <= MAX_REPLY ? malloc(body_length) : NULL;
	if (!body)
		fail(11, "the pycni service answered with an unusable frame", "");
	read_exactly(fd, body, body_length);
	alarm(0);
	uint32_t stdout_length = get_u32(body + 1);
	if (stdout_length > body_length - 5)
		fail(11, "the pycni service answered with a frame cut short", "");
	fwrite(body + 5, 1, stdout_length, stdout);
	fwrite(body + 5 + stdout_length, 1, body_length - 5 - stdout_length, stderr);
	return fflush(stdout) || ferror(stdout) ? 1 : body[0];
}
