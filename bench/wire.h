/* Just enough AMQP 1.0 for a load generator: byte buffers, a generic decoder, the few performatives it writes.
 *
 * Decoding takes any encoding that the standard allows (list0/8/32, uint0/smalluint/uint, numeric or symbolic
 * descriptors), because every broker chooses differently. Encoding is plain: list32 and fixed-width integers.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE };
enum { SASL_MECHANISMS = 0x40, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME };
enum { ACCEPTED = 0x24, DATA_SECTION = 0x75 };
enum { FIELDS_MAX = 16, NESTING_MAX = 16, FRAME_MAX = 1 << 20, FRAME_HEADER = 8 };

static const uint8_t SASL_HEADER[8] = {'A', 'M', 'Q', 'P', 3, 1, 0, 0};
static const uint8_t AMQP_HEADER[8] = {'A', 'M', 'Q', 'P', 0, 1, 0, 0};

/* ---- byte buffers: data lives in [off, len) ---- */

typedef struct {
    uint8_t *p;
    size_t off, len, cap;
} buf_t;

static void buf_reserve(buf_t *b, size_t more) {
    if (b->off == b->len) b->off = b->len = 0;
    if (b->len + more <= b->cap) return;
    if (b->off > 0) { /* move what is left to the front before growing */
        memmove(b->p, b->p + b->off, b->len - b->off);
        b->len -= b->off;
        b->off = 0;
    }
    if (b->len + more > b->cap) {
        b->cap = (b->len + more) * 2;
        b->p = realloc(b->p, b->cap);
        if (!b->p) { fputs("load: out of memory\n", stderr); exit(1); }
    }
}

static inline size_t buf_used(const buf_t *b) { return b->len - b->off; }

static inline void put_u32_at(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
}
static inline uint32_t get_u32_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline void put_u64_at(uint8_t *p, uint64_t v) {
    put_u32_at(p, (uint32_t)(v >> 32)); put_u32_at(p + 4, (uint32_t)v);
}
static inline uint64_t get_u64_at(const uint8_t *p) {
    return (uint64_t)get_u32_at(p) << 32 | get_u32_at(p + 4);
}

static void put_bytes(buf_t *b, const void *p, size_t n) {
    buf_reserve(b, n);
    if (n) memcpy(b->p + b->len, p, n);
    b->len += n;
}
static void put_u8(buf_t *b, unsigned v) { uint8_t x = (uint8_t)v; put_bytes(b, &x, 1); }
static void put_u32(buf_t *b, uint32_t v) { uint8_t x[4]; put_u32_at(x, v); put_bytes(b, x, 4); }

/* ---- AMQP values, written ---- */

static void put_null(buf_t *b) { put_u8(b, 0x40); }
static void put_bool(buf_t *b, int v) { put_u8(b, v ? 0x41 : 0x42); }
static void put_ubyte(buf_t *b, unsigned v) { put_u8(b, 0x50); put_u8(b, v); }
static void put_ushort(buf_t *b, unsigned v) { put_u8(b, 0x60); put_u8(b, v >> 8); put_u8(b, v); }
static void put_uint(buf_t *b, uint32_t v) { put_u8(b, 0x70); put_u32(b, v); }
static void put_var(buf_t *b, unsigned code8, const void *p, size_t n) { /* string a1, symbol a3, binary a0 */
    if (n < 256) { put_u8(b, code8); put_u8(b, (unsigned)n); }
    else { put_u8(b, code8 + 0x10); put_u32(b, (uint32_t)n); }
    put_bytes(b, p, n);
}
static void put_string(buf_t *b, const char *s) { put_var(b, 0xa1, s, strlen(s)); }
static void put_symbol(buf_t *b, const char *s) { put_var(b, 0xa3, s, strlen(s)); }

/* A described list whose size and count are filled in by list_end. Positions are relative to buf.off, which may move. */
static size_t list_start(buf_t *b, unsigned code) {
    put_u8(b, 0x00); put_u8(b, 0x53); put_u8(b, code); put_u8(b, 0xd0);
    size_t at = buf_used(b);
    put_u32(b, 0); put_u32(b, 0);
    return at;
}
static void list_end(buf_t *b, size_t at, uint32_t count) {
    uint8_t *p = b->p + b->off + at;
    put_u32_at(p, (uint32_t)(buf_used(b) - at - 4));
    put_u32_at(p + 4, count);
}
static size_t frame_start(buf_t *b, unsigned type) { /* channel 0: one session on each connection */
    size_t at = buf_used(b);
    put_u32(b, 0); put_u8(b, 2); put_u8(b, type); put_u8(b, 0); put_u8(b, 0);
    return at;
}
static void frame_end(buf_t *b, size_t at) {
    put_u32_at(b->p + b->off + at, (uint32_t)(buf_used(b) - at));
}

/* ---- AMQP values, read ---- */

typedef struct { const uint8_t *p, *end; } view_t;

static int view_need(const view_t *v, size_t n) { return (size_t)(v->end - v->p) >= n; }

static int skip_value_deep(view_t *v, int depth) {
    if (depth > NESTING_MAX || !view_need(v, 1)) return -1;
    uint8_t code = *v->p++;
    if (code == 0x00) return skip_value_deep(v, depth + 1) || skip_value_deep(v, depth + 1) ? -1 : 0;
    size_t n;
    switch (code >> 4) {
    case 0x4: n = 0; break;
    case 0x5: n = 1; break;
    case 0x6: n = 2; break;
    case 0x7: n = 4; break;
    case 0x8: n = 8; break;
    case 0x9: n = 16; break;
    case 0xa: case 0xc: case 0xe:
        if (!view_need(v, 1)) return -1;
        n = *v->p++; break;
    case 0xb: case 0xd: case 0xf:
        if (!view_need(v, 4)) return -1;
        n = get_u32_at(v->p); v->p += 4; break;
    default: return -1;
    }
    if (!view_need(v, n)) return -1;
    v->p += n;
    return 0;
}
static int skip_value(view_t *v) { return skip_value_deep(v, 0); }

/* Any unsigned integer encoding; `absent` for null, a missing field, or a foreign type. */
static uint64_t read_uint(view_t v, uint64_t absent) {
    if (!view_need(&v, 1)) return absent;
    switch (*v.p++) {
    case 0x43: case 0x44: return 0;
    case 0x50: case 0x52: case 0x53: return view_need(&v, 1) ? v.p[0] : absent;
    case 0x60: return view_need(&v, 2) ? (uint64_t)v.p[0] << 8 | v.p[1] : absent;
    case 0x70: return view_need(&v, 4) ? get_u32_at(v.p) : absent;
    case 0x80: return view_need(&v, 8) ? get_u64_at(v.p) : absent;
    default: return absent;
    }
}
static int read_bool(view_t v, int absent) {
    if (!view_need(&v, 1)) return absent;
    if (*v.p == 0x41) return 1;
    if (*v.p == 0x42) return 0;
    return *v.p == 0x56 && view_need(&v, 2) ? v.p[1] != 0 : absent;
}
static int is_null(view_t v) { return !view_need(&v, 1) || *v.p == 0x40; }

/* string, symbol or binary as a view of its bytes; empty for anything else */
static view_t read_var(view_t v) {
    view_t none = {v.p, v.p};
    if (!view_need(&v, 2)) return none;
    uint8_t code = *v.p++;
    size_t n;
    if (code == 0xa0 || code == 0xa1 || code == 0xa3) n = *v.p++;
    else if ((code == 0xb0 || code == 0xb1 || code == 0xb3) && view_need(&v, 4)) { n = get_u32_at(v.p); v.p += 4; }
    else return none;
    if (!view_need(&v, n)) return none;
    v.end = v.p + n;
    return v;
}

typedef struct { const char *name; unsigned code; } descriptor_t;
static const descriptor_t DESCRIPTORS[] = {
    {"amqp:open:list", OPEN}, {"amqp:begin:list", BEGIN}, {"amqp:attach:list", ATTACH}, {"amqp:flow:list", FLOW},
    {"amqp:transfer:list", TRANSFER}, {"amqp:disposition:list", DISPOSITION}, {"amqp:detach:list", DETACH},
    {"amqp:end:list", END}, {"amqp:close:list", CLOSE}, {"amqp:sasl-mechanisms:list", SASL_MECHANISMS},
    {"amqp:sasl-init:list", SASL_INIT}, {"amqp:sasl-outcome:list", SASL_OUTCOME}, {"amqp:accepted:list", ACCEPTED},
    {"amqp:data:binary", DATA_SECTION},
};

/* Reads 0x00 and the descriptor; leaves v at the described value. -1 if it is no described value. */
static int read_descriptor(view_t *v) {
    if (!view_need(v, 2) || *v->p != 0x00) return -1;
    v->p++;
    view_t at = *v;
    if (skip_value(v)) return -1;
    uint64_t code = read_uint(at, UINT64_MAX);
    if (code != UINT64_MAX) return (int)(code & 0xff);
    view_t name = read_var(at);
    for (size_t i = 0; i < sizeof DESCRIPTORS / sizeof *DESCRIPTORS; i++)
        if (strlen(DESCRIPTORS[i].name) == (size_t)(name.end - name.p)
            && !memcmp(DESCRIPTORS[i].name, name.p, (size_t)(name.end - name.p)))
            return (int)DESCRIPTORS[i].code;
    return -1;
}

typedef struct {
    int code;
    view_t field[FIELDS_MAX]; /* empty views for fields that were left out */
    view_t rest;              /* what follows the performative: a transfer's payload */
} performative_t;

/* A described list -> its fields. 0, or -1 when the bytes are not one. */
static int read_performative(view_t v, performative_t *out) {
    memset(out->field, 0, sizeof out->field);
    out->code = read_descriptor(&v);
    if (out->code < 0 || !view_need(&v, 1)) return -1;
    uint8_t form = *v.p++;
    size_t size = 0, count = 0;
    if (form == 0xc0) {
        if (!view_need(&v, 2)) return -1;
        size = v.p[0]; count = v.p[1]; v.p += 1;
    } else if (form == 0xd0) {
        if (!view_need(&v, 8)) return -1;
        size = get_u32_at(v.p); count = get_u32_at(v.p + 4); v.p += 4;
    } else if (form != 0x45) {
        return -1;
    }
    if (!view_need(&v, size)) return -1;
    view_t items = {v.p + (form == 0xc0 ? 1 : form == 0xd0 ? 4 : 0), v.p + size};
    if (form != 0x45 && items.p > items.end) return -1;
    out->rest.p = v.p + size;
    out->rest.end = v.end;
    for (size_t i = 0; i < count && i < FIELDS_MAX; i++) {
        out->field[i].p = items.p;
        if (skip_value(&items)) return -1;
        out->field[i].end = items.p;
    }
    return 0;
}

/* The next whole frame of `in`: 1 and its type and body, 0 when more bytes are needed, -1 when it is nonsense. */
static int next_frame(buf_t *in, int *type, view_t *body) {
    size_t have = buf_used(in);
    if (have < FRAME_HEADER) return 0;
    const uint8_t *p = in->p + in->off;
    uint32_t size = get_u32_at(p), start = 4u * p[4];
    if (size < FRAME_HEADER || start < FRAME_HEADER || start > size || size > FRAME_MAX) return -1;
    if (have < size) return 0;
    *type = p[5];
    body->p = p + start;
    body->end = p + size;
    in->off += size;
    return 1;
}

/* ---- performatives that both the generator and the null broker write ---- */

static void write_open(buf_t *b, const char *container, const char *hostname) {
    size_t f = frame_start(b, 0), l = list_start(b, OPEN);
    put_string(b, container);
    if (hostname) put_string(b, hostname); else put_null(b);
    put_uint(b, FRAME_MAX);
    put_ushort(b, 0);
    list_end(b, l, 4);
    frame_end(b, f);
}
static void write_begin(buf_t *b, int remote_channel, uint32_t incoming_window) {
    size_t f = frame_start(b, 0), l = list_start(b, BEGIN);
    if (remote_channel >= 0) put_ushort(b, (unsigned)remote_channel); else put_null(b);
    put_uint(b, 0);
    put_uint(b, incoming_window);
    put_uint(b, UINT32_C(0x7fffffff));
    put_uint(b, 255);
    list_end(b, l, 5);
    frame_end(b, f);
}
static void write_flow(buf_t *b, uint32_t next_in, uint32_t in_window, uint32_t next_out, uint32_t delivery_count,
                       uint32_t credit) {
    size_t f = frame_start(b, 0), l = list_start(b, FLOW);
    put_uint(b, next_in);
    put_uint(b, in_window);
    put_uint(b, next_out);
    put_uint(b, UINT32_C(0x7fffffff));
    put_uint(b, 0);
    put_uint(b, delivery_count);
    put_uint(b, credit);
    list_end(b, l, 7);
    frame_end(b, f);
}
static void write_accepted(buf_t *b, int as_receiver, uint32_t first, uint32_t last, int settled) {
    size_t f = frame_start(b, 0), l = list_start(b, DISPOSITION);
    put_bool(b, as_receiver);
    put_uint(b, first);
    put_uint(b, last);
    put_bool(b, settled);
    put_u8(b, 0x00); put_u8(b, 0x53); put_u8(b, ACCEPTED); put_u8(b, 0x45);
    list_end(b, l, 5);
    frame_end(b, f);
}
static void write_empty_list(buf_t *b, unsigned code) { /* end and close without an error */
    size_t f = frame_start(b, 0), l = list_start(b, code);
    list_end(b, l, 0);
    frame_end(b, f);
}

/* One transfer with room to patch: the generator copies it and changes the numbers. */
typedef struct {
    buf_t bytes;
    size_t delivery_id, tag, tag_size, message_id, session, body; /* offsets into bytes */
} template_t;

enum { MESSAGE_ID_SIZE = 32, SESSION_ID_SIZE = 8 };

/* `subject` may be NULL; `has_session`: with a group-id of SESSION_ID_SIZE characters. */
static void make_transfer(template_t *t, size_t body_size, size_t tag_size, const char *subject, int has_session) {
    static const uint8_t zeros[64];
    buf_t *b = &t->bytes;
    size_t f = frame_start(b, 0), l = list_start(b, TRANSFER);
    put_uint(b, 0);
    t->delivery_id = buf_used(b) + 1;
    put_uint(b, 0);
    t->tag = buf_used(b) + 2;
    t->tag_size = tag_size;
    put_var(b, 0xa0, zeros, tag_size);
    put_uint(b, 0);
    put_bool(b, 0);
    list_end(b, l, 5);
    static const uint8_t durable[] = {0x00, 0x53, 0x70, 0xc0, 0x02, 0x01, 0x41};
    put_bytes(b, durable, sizeof durable);
    put_u8(b, 0x00); put_u8(b, 0x53); put_u8(b, 0x73); put_u8(b, 0xc0); /* a short list, as clients write it */
    size_t properties = buf_used(b);
    put_u8(b, 0);
    put_u8(b, has_session ? 11 : subject ? 4 : 1);
    static const char id[] = "00000000000000000000000000000000";
    t->message_id = buf_used(b) + 2;
    put_var(b, 0xa1, id, MESSAGE_ID_SIZE);
    if (subject || has_session) {
        put_null(b);
        put_null(b);
        if (subject) put_string(b, subject); else put_null(b);
    }
    if (has_session) {
        for (int i = 4; i < 10; i++) put_null(b);
        t->session = buf_used(b) + 2;
        put_var(b, 0xa1, id, SESSION_ID_SIZE);
    }
    b->p[b->off + properties] = (uint8_t)(buf_used(b) - properties - 1);
    put_u8(b, 0x00); put_u8(b, 0x53); put_u8(b, DATA_SECTION); put_u8(b, 0xb0);
    put_u32(b, (uint32_t)body_size);
    t->body = buf_used(b);
    for (size_t i = 0; i < body_size; i++) put_u8(b, 'a' + (unsigned)(i % 26));
    frame_end(b, f);
}

#endif
