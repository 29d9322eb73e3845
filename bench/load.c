/* One load generator over AMQP 1.0 for every broker: sends, receives, or both at once, and prints one JSON object.
 *
 *   cc -O2 -o load load.c
 *   load both --port 5672 --user NAME --password KEY --address q --window 100 --connections 4 --seconds 3
 *
 * One thread, one poll loop. The clock starts when every link is attached. Each body carries its run, connection and
 * number, so "both" counts only its own messages and knows what was lost or delivered twice.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "net.h"
#include "null.h"

enum { CONNECTIONS_MAX = 4096, STAMP_SIZE = 20, SEND_TAG_SIZE = 4 };
enum { SESSION_WINDOW_MIN = 65535, CLOSE_WAIT_MS = 3000, TICK_MS = 200 };
#define STAMP_MAGIC UINT32_C(0x50424c44)
#define ACKED_BIT (UINT64_C(1) << 63)

typedef enum { WAIT_SASL_HEADER, WAIT_MECHANISMS, WAIT_OUTCOME, WAIT_HEADER, WAIT_OPEN, WAIT_BEGIN, WAIT_ATTACH,
               RUNNING, CLOSING, CLOSED } phase_t;

typedef struct {
    int fd, number, is_sender;
    phase_t phase;
    buf_t in, out;
    uint32_t peer_frame_max;
    uint64_t peer_idle_ns, last_write_ns;
    /* sender: delivery n has delivery-id n, so times[n] is when it left; once acknowledged, the latency with ACKED_BIT */
    uint64_t *times;
    size_t times_cap;
    uint64_t quota, sent, acked, rejected;
    uint32_t window_until, credit_until; /* transfer ids up to which session and link let us send */
    template_t template;
    /* receiver */
    uint32_t delivery_count, next_incoming, credit;
    uint32_t first, last;
    uint64_t awaiting; /* two-step settlements without the broker's echo yet */
    int has_range, in_partial, partial_settled, partial_ours;
    uint32_t partial_id;
} conn_t;

static struct {
    const char *mode, *host, *hostname, *user, *password, *address, *receive_address, *subject;
    int port, connections, window, two_step, verify, deletes, spread, serve_null_port;
    uint64_t sessions;
    size_t size;
    uint64_t count;
    double seconds, timeout, rate;
} opt = {.mode = "both", .host = "127.0.0.1", .address = "q", .port = 5672, .connections = 1, .window = 100, .verify = 1,
         .serve_null_port = -1, .size = 1024, .timeout = 30};

static conn_t conns[CONNECTIONS_MAX];
static int conn_count, sender_count, sends, receives;
static uint32_t run_id;
static int is_sending; /* false once --seconds have passed */
static buf_t seen[CONNECTIONS_MAX]; /* one bit for each message received from a sender */
static uint64_t start_ns, last_ack_ns, last_settle_ns, progress_ns;
static uint64_t received, settled, foreign, duplicates;

/* ---- errors in words ---- */

static void die_of_error(const conn_t *c, const char *what, view_t error) {
    performative_t e;
    view_t condition = {0, 0}, text = {0, 0};
    if (!is_null(error) && !read_performative(error, &e)) {
        condition = read_var(e.field[0]);
        text = read_var(e.field[1]);
    }
    die("%s %d: the broker sent %s: %.*s %.*s", c->is_sender ? "sender" : "receiver", c->number, what,
        (int)(condition.end - condition.p), condition.p ? (const char *)condition.p : "",
        (int)(text.end - text.p), text.p ? (const char *)text.p : "");
}

/* ---- handshake ---- */

static int offers(view_t mechanisms, const char *name) {
    /* an array of symbols or one symbol: the name as a run of bytes is proof enough here */
    size_t n = strlen(name);
    for (const uint8_t *p = mechanisms.p; p + n <= mechanisms.end; p++)
        if (!memcmp(p, name, n)) return 1;
    return 0;
}

static void write_sasl_init(conn_t *c, view_t mechanisms) {
    const char *mechanism = opt.user ? "PLAIN" : "ANONYMOUS";
    if (!offers(mechanisms, mechanism)) die("the broker does not offer SASL %s", mechanism);
    size_t f = frame_start(&c->out, 1), l = list_start(&c->out, SASL_INIT);
    put_symbol(&c->out, mechanism);
    if (opt.user) {
        buf_t plain = {0, 0, 0, 0};
        put_u8(&plain, 0);
        put_bytes(&plain, opt.user, strlen(opt.user));
        put_u8(&plain, 0);
        put_bytes(&plain, opt.password, strlen(opt.password));
        put_var(&c->out, 0xa0, plain.p, plain.len);
        free(plain.p);
    } else {
        put_var(&c->out, 0xa0, "", 0);
    }
    put_string(&c->out, opt.hostname);
    list_end(&c->out, l, 3);
    frame_end(&c->out, f);
}

static uint32_t session_window(void) {
    return (uint32_t)(opt.window > SESSION_WINDOW_MIN / 4 ? opt.window * 4 : SESSION_WINDOW_MIN);
}

static void write_terminus(buf_t *b, unsigned code, const char *address) { /* source 0x28 or target 0x29 */
    size_t l = list_start(b, code);
    put_string(b, address);
    list_end(b, l, 1);
}

/* Where a connection sends to or receives from; with --spread each of so many queues has its share of connections. */
static void address_of(const conn_t *c, char *out, size_t size) {
    const char *address = !c->is_sender && opt.receive_address ? opt.receive_address : opt.address;
    if (opt.spread) snprintf(out, size, "%s-%d", address, c->number % opt.spread);
    else snprintf(out, size, "%s", address);
}

static void write_attach(conn_t *c) {
    char name[64], address[512];
    address_of(c, address, sizeof address);
    snprintf(name, sizeof name, "%s-%08x-%d", c->is_sender ? "sender" : "receiver", run_id, c->number);
    size_t f = frame_start(&c->out, 0), l = list_start(&c->out, ATTACH);
    put_string(&c->out, name);
    put_uint(&c->out, 0);
    put_bool(&c->out, !c->is_sender);
    put_ubyte(&c->out, !c->is_sender && opt.deletes ? 1 : 0); /* 1: the broker settles what it delivers, and forgets it */
    put_ubyte(&c->out, !c->is_sender && opt.two_step ? 1 : 0);
    write_terminus(&c->out, 0x28, c->is_sender ? name : address);
    write_terminus(&c->out, 0x29, c->is_sender ? address : name);
    if (c->is_sender) {
        put_null(&c->out);
        put_null(&c->out);
        put_uint(&c->out, 0);
    }
    list_end(&c->out, l, c->is_sender ? 10 : 7);
    frame_end(&c->out, f);
}

static void on_header(conn_t *c) {
    const uint8_t *p = c->in.p + c->in.off;
    if (p[4] != (c->phase == WAIT_SASL_HEADER ? 3 : 0))
        die("the broker answered with protocol id %d", p[4]);
    c->in.off += 8;
    if (c->phase == WAIT_SASL_HEADER) c->phase = WAIT_MECHANISMS;
    else c->phase = WAIT_OPEN;
}

static void on_handshake(conn_t *c, const performative_t *p) {
    char container[64];
    if (p->code == SASL_MECHANISMS && c->phase == WAIT_MECHANISMS) {
        write_sasl_init(c, p->field[0]);
        c->phase = WAIT_OUTCOME;
    } else if (p->code == SASL_OUTCOME && c->phase == WAIT_OUTCOME) {
        if (read_uint(p->field[0], 1)) die("the broker refused the SASL credentials");
        put_bytes(&c->out, AMQP_HEADER, 8);
        snprintf(container, sizeof container, "load-%08x-%s-%d", run_id, c->is_sender ? "s" : "r", c->number);
        write_open(&c->out, container, opt.hostname);
        c->phase = WAIT_HEADER;
    } else if (p->code == OPEN && c->phase == WAIT_OPEN) {
        c->peer_frame_max = (uint32_t)read_uint(p->field[2], UINT32_MAX);
        c->peer_idle_ns = read_uint(p->field[4], 0) * UINT64_C(1000000);
        write_begin(&c->out, -1, session_window());
        c->phase = WAIT_BEGIN;
    } else if (p->code == BEGIN && c->phase == WAIT_BEGIN) {
        c->next_incoming = (uint32_t)read_uint(p->field[1], 0);
        c->window_until = (uint32_t)read_uint(p->field[2], 0);
        write_attach(c);
        c->phase = WAIT_ATTACH;
    } else if (p->code == ATTACH && c->phase == WAIT_ATTACH) {
        c->delivery_count = (uint32_t)read_uint(p->field[9], 0);
        c->phase = RUNNING; /* a refusal has a null terminus here and a detach with the reason right behind */
    } else {
        die("unexpected performative 0x%02x in phase %d", (unsigned)p->code, (int)c->phase);
    }
}

/* ---- sending ---- */

static void write_hex(uint8_t *at, uint64_t value, int digits) {
    static const char hex[] = "0123456789abcdef";
    for (int i = digits - 1; i >= 0; i--, value >>= 4) at[i] = (uint8_t)hex[value & 15];
}

static void prepare_sender(conn_t *c) {
    make_transfer(&c->template, opt.size, SEND_TAG_SIZE, opt.subject, opt.sessions > 0);
    uint8_t *p = c->template.bytes.p;
    if (buf_used(&c->template.bytes) > c->peer_frame_max)
        die("--size %zu does not fit the broker's max-frame-size %u", opt.size, c->peer_frame_max);
    write_hex(p + c->template.message_id, run_id, 8);
    write_hex(p + c->template.message_id + 8, (uint64_t)c->number, 8);
    if (opt.size >= STAMP_SIZE) {
        put_u32_at(p + c->template.body, STAMP_MAGIC);
        put_u32_at(p + c->template.body + 4, run_id);
        put_u32_at(p + c->template.body + 8, (uint32_t)c->number);
    }
}

static int is_due(const conn_t *c, uint64_t now) {
    return opt.rate <= 0 || (double)c->sent < (double)(now - start_ns) / 1e9 * opt.rate;
}

static void send_allowed(conn_t *c, uint64_t now) {
    const template_t *t = &c->template;
    size_t n = buf_used(&t->bytes);
    uint64_t settled_sends = c->acked + c->rejected;
    while (is_sending && c->sent < c->quota && is_due(c, now) && c->sent - settled_sends < (uint64_t)opt.window
           && (int32_t)(c->credit_until - (uint32_t)c->sent) > 0 && (int32_t)(c->window_until - (uint32_t)c->sent) > 0
           && buf_used(&c->out) < WRITE_MARK) {
        if (c->sent == c->times_cap) {
            c->times_cap = c->times_cap ? c->times_cap * 2 : 4096;
            c->times = realloc(c->times, c->times_cap * sizeof *c->times);
            if (!c->times) die("out of memory");
        }
        buf_reserve(&c->out, n);
        uint8_t *at = c->out.p + c->out.len;
        memcpy(at, t->bytes.p, n);
        put_u32_at(at + t->delivery_id, (uint32_t)c->sent);
        put_u32_at(at + t->tag, (uint32_t)c->sent);
        write_hex(at + t->message_id + 16, c->sent, 16);
        if (opt.sessions) write_hex(at + t->session, c->sent % opt.sessions, SESSION_ID_SIZE);
        if (opt.size >= STAMP_SIZE) put_u64_at(at + t->body + 12, c->sent);
        c->out.len += n;
        c->times[c->sent++] = now;
    }
}

static void on_send_outcome(conn_t *c, const performative_t *p, uint64_t now) {
    uint32_t first = (uint32_t)read_uint(p->field[1], 0), last = (uint32_t)read_uint(p->field[2], first);
    view_t state = p->field[4];
    performative_t outcome;
    int is_accepted = is_null(state) || read_descriptor(&state) == ACCEPTED;
    if (!read_bool(p->field[3], 0) && is_null(p->field[4])) return;
    if (!is_accepted && c->rejected == 0 && !read_performative(p->field[4], &outcome)) {
        performative_t error;
        view_t condition = {0, 0};
        if (!is_null(outcome.field[0]) && !read_performative(outcome.field[0], &error))
            condition = read_var(error.field[0]);
        fprintf(stderr, "load: sender %d: outcome 0x%02x %.*s\n", c->number, (unsigned)outcome.code,
                (int)(condition.end - condition.p), condition.p ? (const char *)condition.p : "");
    }
    for (uint32_t id = first; (int32_t)(last - id) >= 0; id++) {
        if (id >= c->sent || c->times[id] & ACKED_BIT) continue;
        c->times[id] = (now - c->times[id]) | ACKED_BIT;
        if (is_accepted) c->acked++; else c->rejected++;
        last_ack_ns = progress_ns = now;
    }
}

/* ---- receiving ---- */

/* Is it a message of this run, seen for the first time? */
static int is_ours(view_t payload) {
    if (!opt.verify) return 1;
    while (payload.p < payload.end) {
        int section = read_descriptor(&payload);
        if (section < 0) break;
        if (section == DATA_SECTION) {
            view_t body = read_var(payload);
            if (body.end - body.p < STAMP_SIZE || get_u32_at(body.p) != STAMP_MAGIC || get_u32_at(body.p + 4) != run_id)
                break;
            uint32_t sender = get_u32_at(body.p + 8);
            uint64_t index = get_u64_at(body.p + 12);
            if (sender >= (uint32_t)sender_count || index >= conns[sender].sent) break;
            buf_t *bits = &seen[sender];
            while (bits->len <= index / 8) put_u8(bits, 0);
            if (bits->p[index / 8] & (1u << index % 8)) { duplicates++; return 0; }
            bits->p[index / 8] |= (uint8_t)(1u << index % 8);
            return 1;
        }
        if (skip_value(&payload)) break;
    }
    foreign++;
    return 0;
}

/* Top credit up to the window; with --count, receivers together never ask for more than is still wanted. */
static void write_credit(conn_t *c) {
    uint64_t grant = c->awaiting < (uint64_t)opt.window ? (uint64_t)opt.window - c->awaiting : 0;
    if (opt.count && !sends) {
        uint64_t asked = received;
        for (int i = 0; i < conn_count; i++) asked += &conns[i] == c ? 0 : conns[i].credit;
        uint64_t wanted = asked < opt.count ? opt.count - asked : 0;
        if (grant > wanted) grant = wanted;
        if (grant <= c->credit) return;
    }
    c->credit = (uint32_t)grant;
    write_flow(&c->out, c->next_incoming, session_window(), 0, c->delivery_count, c->credit);
}

static void flush_range(conn_t *c) {
    if (!c->has_range) return;
    write_accepted(&c->out, 1, c->first, c->last, !opt.two_step);
    if (opt.two_step) c->awaiting += (uint64_t)(c->last - c->first) + 1;
    c->has_range = 0;
}

static void on_transfer(conn_t *c, const performative_t *p, uint64_t now) {
    c->next_incoming++;
    if (!c->in_partial) {
        c->partial_id = (uint32_t)read_uint(p->field[1], 0);
        c->partial_settled = 0;
        c->partial_ours = is_ours(p->rest);
        c->delivery_count++;
        if (c->credit) c->credit--;
    }
    c->partial_settled |= read_bool(p->field[4], 0);
    c->in_partial = read_bool(p->field[5], 0);
    if (c->in_partial) return;
    progress_ns = now;
    if (read_bool(p->field[9], 0)) return; /* aborted */
    received += (uint64_t)c->partial_ours;
    if (!opt.two_step || c->partial_settled) {
        settled += (uint64_t)c->partial_ours;
        last_settle_ns = now;
    }
    if (c->partial_settled) return;
    if (c->has_range && c->partial_id != c->last + 1) flush_range(c);
    if (!c->has_range) c->first = c->partial_id;
    c->last = c->partial_id;
    c->has_range = 1;
}

static void on_settle_echo(conn_t *c, const performative_t *p, uint64_t now) {
    uint32_t first = (uint32_t)read_uint(p->field[1], 0), last = (uint32_t)read_uint(p->field[2], first);
    uint64_t n = (uint64_t)(last - first) + 1;
    if (!opt.two_step || !read_bool(p->field[3], 0)) return;
    if (n > c->awaiting) die("the broker settled %llu deliveries, %llu were open", (unsigned long long)n,
                             (unsigned long long)c->awaiting);
    c->awaiting -= n;
    settled += n;
    last_settle_ns = progress_ns = now;
}

/* ---- one connection ---- */

static void on_flow(conn_t *c, const performative_t *p) {
    if (c->is_sender) {
        c->window_until = (uint32_t)(read_uint(p->field[0], 0) + read_uint(p->field[1], 0));
        if (!is_null(p->field[4])) c->credit_until = (uint32_t)(read_uint(p->field[5], 0) + read_uint(p->field[6], 0));
    }
    if (read_bool(p->field[9], 0)) {
        if (c->is_sender)
            write_flow(&c->out, c->next_incoming, session_window(), (uint32_t)c->sent, (uint32_t)c->sent,
                       c->credit_until - (uint32_t)c->sent);
        else if (start_ns)
            write_credit(c);
    }
}

static void on_performative(conn_t *c, const performative_t *p, uint64_t now) {
    if (c->phase < RUNNING && p->code != DETACH && p->code != END && p->code != CLOSE) { on_handshake(c, p); return; }
    switch (p->code) {
    case FLOW: on_flow(c, p); break;
    case TRANSFER: if (c->phase == RUNNING) on_transfer(c, p, now); break; /* later ones go back to the queue */
    case DISPOSITION:
        if (c->is_sender) on_send_outcome(c, p, now); else on_settle_echo(c, p, now);
        break;
    case DETACH: if (c->phase <= RUNNING) die_of_error(c, "detach", p->field[2]); break;
    case END: if (c->phase <= RUNNING) die_of_error(c, "end", p->field[0]); break;
    case CLOSE:
        if (c->phase != CLOSING) die_of_error(c, "close", p->field[0]);
        c->phase = CLOSED;
        break;
    default: die("unexpected performative 0x%02x", (unsigned)p->code);
    }
}

static void on_input(conn_t *c, uint64_t now) {
    for (;;) {
        if (c->phase == WAIT_SASL_HEADER || c->phase == WAIT_HEADER) {
            if (buf_used(&c->in) < 8) return;
            if (!is_header(&c->in)) die("the broker does not speak AMQP");
            on_header(c);
            continue;
        }
        int type;
        view_t body;
        performative_t p;
        int got = next_frame(&c->in, &type, &body);
        if (got == 0) return;
        if (got < 0) die("the broker sent a malformed frame");
        if (body.p == body.end) continue;
        if (read_performative(body, &p)) die("the broker sent a frame that does not decode");
        on_performative(c, &p, now);
    }
}

/* Everything a burst of input allows: settle what came, top up credit, send what the windows allow, write once. */
static void after_input(conn_t *c, uint64_t now) {
    if (c->phase == RUNNING && start_ns) {
        if (c->is_sender) {
            send_allowed(c, now);
        } else {
            flush_range(c);
            if (c->credit + c->awaiting <= (uint64_t)opt.window / 2) write_credit(c);
        }
    }
    if (buf_used(&c->out)) {
        c->last_write_ns = now;
        if (flush_buffer(c->fd, &c->out)) die("write: %s", strerror(errno));
        if (c->is_sender && c->phase == RUNNING && start_ns && !buf_used(&c->out)) { /* WRITE_MARK had cut the burst */
            send_allowed(c, now);
            if (flush_buffer(c->fd, &c->out)) die("write: %s", strerror(errno));
        }
    } else if (c->peer_idle_ns && now - c->last_write_ns > c->peer_idle_ns / 2) {
        size_t f = frame_start(&c->out, 0);
        frame_end(&c->out, f);
        c->last_write_ns = now;
    }
}

static void poll_once(int wait_ms) {
    static struct pollfd polls[CONNECTIONS_MAX];
    for (int i = 0; i < conn_count; i++)
        polls[i] = (struct pollfd){conns[i].fd, POLLIN | (buf_used(&conns[i].out) ? POLLOUT : 0), 0};
    if (poll(polls, (nfds_t)conn_count, wait_ms) < 0 && errno != EINTR) die("poll: %s", strerror(errno));
    for (int i = 0; i < conn_count; i++) {
        conn_t *c = &conns[i];
        if (c->phase == CLOSED) continue;
        uint64_t now = now_ns();
        if (polls[i].revents & (POLLIN | POLLHUP | POLLERR) && fill_buffer(c->fd, &c->in)) {
            if (c->phase != CLOSING) die("the broker cut the connection%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
            c->phase = CLOSED;
            continue;
        }
        if (polls[i].revents & POLLIN) on_input(c, now);
        after_input(c, now);
    }
}

/* ---- the run ---- */

static void connect_all(void) {
    struct addrinfo hints = {0}, *found;
    char port[16];
    hints.ai_socktype = SOCK_STREAM;
    snprintf(port, sizeof port, "%d", opt.port);
    if (getaddrinfo(opt.host, port, &hints, &found)) die("unknown host %s", opt.host);
    for (int i = 0; i < conn_count; i++) {
        conn_t *c = &conns[i];
        c->is_sender = sends && i < opt.connections;
        c->number = c->is_sender ? i : i - sender_count;
        c->fd = socket(found->ai_family, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, found->ai_addr, found->ai_addrlen))
            die("cannot connect to %s:%d: %s", opt.host, opt.port, strerror(errno));
        prepare_socket(c->fd);
        c->last_write_ns = now_ns();
        c->quota = !opt.count ? UINT32_MAX
                              : opt.count / (uint64_t)opt.connections + ((uint64_t)i < opt.count % (uint64_t)opt.connections);
        put_bytes(&c->out, SASL_HEADER, 8);
    }
    freeaddrinfo(found);
}

static int all_running(void) {
    for (int i = 0; i < conn_count; i++)
        if (conns[i].phase < RUNNING) return 0;
    return 1;
}

static uint64_t total_sent, total_acked, total_rejected;

static void add_up(void) {
    total_sent = total_acked = total_rejected = 0;
    for (int i = 0; i < sender_count; i++) {
        total_sent += conns[i].sent;
        total_acked += conns[i].acked;
        total_rejected += conns[i].rejected;
    }
}

static int is_finished(uint64_t now) {
    int time_is_up = opt.seconds > 0 && (double)(now - start_ns) / 1e9 >= opt.seconds;
    if (time_is_up) is_sending = 0;
    add_up();
    if (sends) {
        for (int i = 0; i < sender_count; i++)
            if (is_sending && conns[i].sent < conns[i].quota) return 0;
        if (total_acked + total_rejected < total_sent) return 0;
        for (int i = sender_count; i < conn_count; i++)
            if (opt.verify && conns[i].awaiting) return 0;
        return !receives || (settled >= total_acked && received >= total_acked);
    }
    return time_is_up || (opt.count && settled >= opt.count);
}

static void check_progress(uint64_t now) {
    if ((double)(now - progress_ns) / 1e9 < opt.timeout) return;
    add_up();
    conn_t *c = &conns[0];
    die("no progress for %.0f s: sent %llu acked %llu rejected %llu received %llu settled %llu "
        "(first connection: phase %d credit left %d window left %d)", opt.timeout, (unsigned long long)total_sent,
        (unsigned long long)total_acked, (unsigned long long)total_rejected, (unsigned long long)received,
        (unsigned long long)settled, (int)c->phase, (int)(c->credit_until - (uint32_t)c->sent),
        (int)(c->window_until - (uint32_t)c->sent));
}

static void close_all(void) {
    uint64_t until = now_ns() + UINT64_C(1000000) * CLOSE_WAIT_MS;
    for (int i = 0; i < conn_count; i++) {
        flush_range(&conns[i]);
        write_empty_list(&conns[i].out, CLOSE);
        conns[i].phase = CLOSING;
    }
    for (int open = conn_count; open && now_ns() < until;) {
        poll_once(TICK_MS);
        open = 0;
        for (int i = 0; i < conn_count; i++) open += conns[i].phase != CLOSED;
    }
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void report(uint64_t end_ns, double cpu) {
    uint64_t *all = malloc((total_sent + 1) * sizeof *all), n = 0;
    if (!all) die("out of memory");
    for (int i = 0; i < sender_count; i++)
        for (uint64_t k = 0; k < conns[i].sent; k++)
            if (conns[i].times[k] & ACKED_BIT) all[n++] = conns[i].times[k] & ~ACKED_BIT;
    qsort(all, n, sizeof *all, by_size);
    double wall = (double)(end_ns - start_ns) / 1e9;
    double ack_wall = last_ack_ns ? (double)(last_ack_ns - start_ns) / 1e9 : 0;
    double settle_wall = last_settle_ns ? (double)(last_settle_ns - start_ns) / 1e9 : 0;
    uint64_t messages = sends ? total_acked : settled;
    printf("{\"mode\":\"%s\",\"connections\":%d,\"window\":%d,\"size\":%zu,\"two_step\":%s,\"verified\":%s,", opt.mode,
           opt.connections, opt.window, opt.size, opt.two_step ? "true" : "false",
           opt.verify && sends && receives ? "true" : "false");
    printf("\"sent\":%llu,\"acked\":%llu,\"rejected\":%llu,\"received\":%llu,\"settled\":%llu,\"foreign\":%llu,"
           "\"duplicates\":%llu,", (unsigned long long)total_sent, (unsigned long long)total_acked,
           (unsigned long long)total_rejected, (unsigned long long)received, (unsigned long long)settled,
           (unsigned long long)foreign, (unsigned long long)duplicates);
    printf("\"wall_s\":%.6f,\"msgs_per_s\":%.1f,\"send_acked_per_s\":%.1f,\"receive_settled_per_s\":%.1f,", wall,
           wall > 0 ? (double)messages / wall : 0, ack_wall > 0 ? (double)total_acked / ack_wall : 0,
           settle_wall > 0 ? (double)settled / settle_wall : 0);
    printf("\"ack_us_p50\":%.1f,\"ack_us_p99\":%.1f,\"ack_us_max\":%.1f,", n ? (double)all[n / 2] / 1e3 : 0,
           n ? (double)all[n * 99 / 100] / 1e3 : 0, n ? (double)all[n - 1] / 1e3 : 0);
    printf("\"generator_cpu_s\":%.6f,\"generator_cpu_us_per_msg\":%.3f}\n", cpu, messages ? cpu * 1e6 / (double)messages : 0);
    free(all);
}

static void run(void) {
    sends = strcmp(opt.mode, "receive") != 0;
    receives = strcmp(opt.mode, "send") != 0;
    if (!sends) opt.verify = 0; /* what waits in the queue came from another run */
    if (opt.size < STAMP_SIZE) opt.verify = 0;
    sender_count = sends ? opt.connections : 0;
    conn_count = opt.connections * (sends + receives);
    run_id = (uint32_t)(now_ns() ^ (uint64_t)getpid() << 20);
    is_sending = sends;
    progress_ns = now_ns();
    connect_all();
    while (!all_running()) {
        poll_once(TICK_MS);
        check_progress(now_ns());
    }
    for (int i = 0; i < sender_count; i++) prepare_sender(&conns[i]);
    double cpu = cpu_seconds();
    start_ns = progress_ns = now_ns();
    for (int i = conn_count - 1; i >= 0; i--) after_input(&conns[i], start_ns); /* receivers first */
    uint64_t now = start_ns;
    while (!is_finished(now)) {
        poll_once(opt.rate > 0 || (opt.seconds > 0 && opt.seconds < 1) ? 1 : TICK_MS);
        now = now_ns();
        check_progress(now);
    }
    cpu = cpu_seconds() - cpu;
    close_all();
    report(now, cpu);
}

/* ---- the command line ---- */

static const char USAGE[] =
    "usage: load send|receive|both [--host H] [--port P] [--hostname H] [--user U --password P] [--address A]\n"
    "            [--size BYTES] [--window N] [--connections N] (--count N | --seconds S) [--two-step] [--no-verify]\n"
    "            [--receive-address A] [--spread N] [--subject TEXT] [--sessions N] [--delete]\n"
    "            [--timeout S] [--rate N]      N: messages a second and sender, at most; without it as many as the window lets through\n"
    "       load --serve-null PORT [--size BYTES]      the null broker: answers at once, stores nothing\n";

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "send") || !strcmp(name, "receive") || !strcmp(name, "both")) { opt.mode = name; continue; }
        if (!strcmp(name, "--two-step")) { opt.two_step = 1; continue; }
        if (!strcmp(name, "--no-verify")) { opt.verify = 0; continue; }
        if (!strcmp(name, "--delete")) { opt.deletes = 1; continue; }
        if (i + 1 >= argc) { fputs(USAGE, stderr); exit(2); }
        const char *value = argv[++i];
        if (!strcmp(name, "--host")) opt.host = value;
        else if (!strcmp(name, "--hostname")) opt.hostname = value;
        else if (!strcmp(name, "--port")) opt.port = atoi(value);
        else if (!strcmp(name, "--user")) opt.user = value;
        else if (!strcmp(name, "--password")) opt.password = value;
        else if (!strcmp(name, "--address")) opt.address = value;
        else if (!strcmp(name, "--receive-address")) opt.receive_address = value;
        else if (!strcmp(name, "--spread")) opt.spread = atoi(value);
        else if (!strcmp(name, "--subject")) opt.subject = value;
        else if (!strcmp(name, "--sessions")) opt.sessions = (uint64_t)atoll(value);
        else if (!strcmp(name, "--size")) opt.size = (size_t)atol(value);
        else if (!strcmp(name, "--window")) opt.window = atoi(value);
        else if (!strcmp(name, "--connections")) opt.connections = atoi(value);
        else if (!strcmp(name, "--count")) opt.count = (uint64_t)atoll(value);
        else if (!strcmp(name, "--seconds")) opt.seconds = atof(value);
        else if (!strcmp(name, "--timeout")) opt.timeout = atof(value);
        else if (!strcmp(name, "--rate")) opt.rate = atof(value);
        else if (!strcmp(name, "--serve-null")) opt.serve_null_port = atoi(value);
        else { fprintf(stderr, "load: unknown option %s\n%s", name, USAGE); exit(2); }
    }
    if (opt.window < 1 || opt.connections < 1 || opt.connections * 2 > CONNECTIONS_MAX || opt.size > FRAME_MAX / 2)
        die("--window and --connections must be at least 1, --connections at most %d, --size at most %d",
            CONNECTIONS_MAX / 2, FRAME_MAX / 2);
    if (opt.serve_null_port < 0 && !opt.count && opt.seconds <= 0) die("say --count N or --seconds S");
    if (opt.user && !opt.password) die("--user needs --password");
    if (!opt.hostname) opt.hostname = opt.host;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    if (opt.serve_null_port >= 0) serve_null(opt.serve_null_port, opt.size);
    else run();
    return 0;
}
