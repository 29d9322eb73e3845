/* The null broker: answers everything at once, stores nothing. It shows what the generator can do alone. */
#ifndef BENCH_NULL_H
#define BENCH_NULL_H

#include "net.h"

enum { NULL_CONNECTIONS_MAX = 256, NULL_CREDIT = 5000, NULL_WINDOW = 65536, NULL_TAG_SIZE = 16 };

typedef struct {
    int fd;
    buf_t in, out;
    int pumps;                     /* the client receives on this connection */
    uint32_t received;             /* transfers that came in, also the next incoming id */
    uint32_t unanswered;           /* of those, not acknowledged yet */
    uint32_t credit_given;         /* delivery count up to which the client may send */
    uint32_t delivered;            /* transfers pumped out */
    uint32_t credit_until;         /* delivery count up to which we may pump */
    uint32_t window_until;
} served_t;

static void serve_attach(served_t *s, const performative_t *p) {
    int client_receives = read_bool(p->field[2], 0);
    size_t f = frame_start(&s->out, 0), l = list_start(&s->out, ATTACH);
    put_bytes(&s->out, p->field[0].p, (size_t)(p->field[0].end - p->field[0].p));
    put_uint(&s->out, 0);
    put_bool(&s->out, !client_receives);
    put_ubyte(&s->out, 0);
    put_ubyte(&s->out, 0);
    for (int i = 5; i <= 6; i++) { /* source and target as they came */
        if (is_null(p->field[i])) put_null(&s->out);
        else put_bytes(&s->out, p->field[i].p, (size_t)(p->field[i].end - p->field[i].p));
    }
    put_null(&s->out);
    put_null(&s->out);
    put_uint(&s->out, 0);
    list_end(&s->out, l, 10);
    frame_end(&s->out, f);
    s->pumps = client_receives;
    if (!client_receives) {
        s->credit_given = NULL_CREDIT;
        write_flow(&s->out, 0, NULL_WINDOW, 0, 0, NULL_CREDIT);
    }
}

static int serve_performative(served_t *s, const performative_t *p) {
    switch (p->code) {
    case SASL_INIT: {
        size_t f = frame_start(&s->out, 1), l = list_start(&s->out, SASL_OUTCOME);
        put_ubyte(&s->out, 0);
        list_end(&s->out, l, 1);
        frame_end(&s->out, f);
        return 0;
    }
    case OPEN: write_open(&s->out, "null", NULL); return 0;
    case BEGIN:
        write_begin(&s->out, 0, NULL_WINDOW);
        s->window_until = (uint32_t)read_uint(p->field[2], 0);
        return 0;
    case ATTACH: serve_attach(s, p); return 0;
    case FLOW:
        s->window_until = (uint32_t)(read_uint(p->field[0], 0) + read_uint(p->field[1], 0));
        if (s->pumps && !is_null(p->field[4]))
            s->credit_until = (uint32_t)(read_uint(p->field[5], 0) + read_uint(p->field[6], 0));
        return 0;
    case TRANSFER: s->received++; s->unanswered++; return 0;
    case DISPOSITION:
        if (!read_bool(p->field[3], 0)) {
            uint32_t first = (uint32_t)read_uint(p->field[1], 0);
            write_accepted(&s->out, 0, first, (uint32_t)read_uint(p->field[2], first), 1);
        }
        return 0;
    case CLOSE: write_empty_list(&s->out, CLOSE); return 0;
    default: return 0;
    }
}

static void serve_answer(served_t *s, template_t *canned) {
    if (s->unanswered) {
        write_accepted(&s->out, 1, s->received - s->unanswered, s->received - 1, 1);
        s->unanswered = 0;
        if (s->credit_given - s->received < NULL_CREDIT / 2) {
            s->credit_given = s->received + NULL_CREDIT;
            write_flow(&s->out, s->received, NULL_WINDOW, 0, s->received, NULL_CREDIT);
        }
    }
    while (s->pumps && s->delivered != s->credit_until && s->delivered != s->window_until
           && buf_used(&s->out) < WRITE_MARK) {
        size_t n = buf_used(&canned->bytes);
        buf_reserve(&s->out, n);
        uint8_t *at = s->out.p + s->out.len;
        memcpy(at, canned->bytes.p, n);
        put_u32_at(at + canned->delivery_id, s->delivered);
        put_u32_at(at + canned->tag, s->delivered);
        s->out.len += n;
        s->delivered++;
    }
}

static int serve_input(served_t *s) {
    for (;;) {
        if (is_header(&s->in)) {
            int sasl = s->in.p[s->in.off + 4] == 3;
            put_bytes(&s->out, sasl ? SASL_HEADER : AMQP_HEADER, 8);
            if (sasl) {
                size_t f = frame_start(&s->out, 1), l = list_start(&s->out, SASL_MECHANISMS);
                static const uint8_t offer[] = {0xe0, 18, 2, 0xa3, 5, 'P', 'L', 'A', 'I', 'N',
                                                9, 'A', 'N', 'O', 'N', 'Y', 'M', 'O', 'U', 'S'};
                put_bytes(&s->out, offer, sizeof offer);
                list_end(&s->out, l, 1);
                frame_end(&s->out, f);
            }
            s->in.off += 8;
            continue;
        }
        int type;
        view_t body;
        performative_t p;
        int got = next_frame(&s->in, &type, &body);
        if (got <= 0) return got;
        if (body.p == body.end) continue;
        if (read_performative(body, &p) || serve_performative(s, &p)) return -1;
    }
}

static void serve_null(int port, size_t body_size) {
    static served_t served[NULL_CONNECTIONS_MAX];
    struct pollfd polls[NULL_CONNECTIONS_MAX + 1];
    template_t canned = {{0}, 0, 0, 0, 0, 0, 0};
    int count = 0, on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {0};
    socklen_t address_size = sizeof address;
    make_transfer(&canned, body_size, NULL_TAG_SIZE, NULL, 0);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
        die("cannot listen on 127.0.0.1:%d: %s", port, strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &address_size);
    printf("{\"port\":%d}\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        polls[0] = (struct pollfd){listener, count < NULL_CONNECTIONS_MAX ? POLLIN : 0, 0};
        for (int i = 0; i < count; i++)
            polls[i + 1] = (struct pollfd){served[i].fd, POLLIN | (buf_used(&served[i].out) ? POLLOUT : 0), 0};
        if (poll(polls, (nfds_t)count + 1, -1) < 0 && errno != EINTR) die("poll: %s", strerror(errno));
        for (int i = count - 1; i >= 0; i--) {
            served_t *s = &served[i];
            if (!polls[i + 1].revents) continue;
            int gone = polls[i + 1].revents & (POLLIN | POLLHUP | POLLERR) ? fill_buffer(s->fd, &s->in) : 0;
            if (!gone) gone = serve_input(s);
            serve_answer(s, &canned);
            if (flush_buffer(s->fd, &s->out)) gone = -1;
            if (gone) {
                close(s->fd);
                free(s->in.p);
                free(s->out.p);
                served[i] = served[--count];
            }
        }
        if (polls[0].revents) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) continue;
            prepare_socket(fd);
            memset(&served[count], 0, sizeof served[count]);
            served[count++].fd = fd;
        }
    }
}

#endif
