/* Non-blocking sockets with one buffer each way, shared by the generator and the null broker. */
#ifndef BENCH_NET_H
#define BENCH_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

enum { READ_CHUNK = 256 * 1024, WRITE_MARK = 256 * 1024 };

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void prepare_socket(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* 0 while open, -1 at the end of the stream (errno 0) or on an error. One chunk for each round: nobody starves. */
static int fill_buffer(int fd, buf_t *in) {
    buf_reserve(in, READ_CHUNK);
    ssize_t n = read(fd, in->p + in->len, in->cap - in->len);
    if (n > 0) { in->len += (size_t)n; return 0; }
    if (n == 0) { errno = 0; return -1; }
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

static int flush_buffer(int fd, buf_t *out) {
    while (buf_used(out)) {
        ssize_t n = send(fd, out->p + out->off, buf_used(out), MSG_NOSIGNAL);
        if (n > 0) { out->off += (size_t)n; continue; }
        if (n < 0 && errno == EINTR) continue;
        return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
    }
    return 0;
}

static int is_header(const buf_t *in) {
    return buf_used(in) >= 8 && !memcmp(in->p + in->off, "AMQP", 4);
}

#endif
