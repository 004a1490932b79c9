/*
 * Tollgate: a rate limiter for C programs. Generated from ffi/src by `make header`; do not edit.
 *
 * - A function that can fail returns a tollgate_status: TOLLGATE_OK, or a negative error. Outputs are
 *   written on TOLLGATE_OK only. A denied request is no error: TOLLGATE_OK, and allowed = 0.
 * - Pointers lead to what their types say, and those with a length to as many bytes. Unless a comment
 *   says otherwise, NULL is TOLLGATE_ERR_NULL, a misaligned pointer TOLLGATE_ERR_ALIGN, and an opaque
 *   object that was never made TOLLGATE_ERR_ARGUMENT. "Errors" lists what can happen besides.
 * - Memory is the caller's: ask ..._layout how much and how aligned, then ..._init or ..._attach.
 *   When nobody uses the object any more, the memory is the caller's again. Only what a ..._free
 *   function takes back is made of memory of the library's.
 * - Time is the caller's: nanoseconds of one clock that does not jump, such as CLOCK_MONOTONIC.
 * - Every function may be called by any number of threads. A const bucket, table or counter may be
 *   used by any number of threads and processes at once; one that is not const, by one at a time.
 * - Nothing on the way of a request allocates, locks, blocks or reads a clock. Only a tollgate_client,
 *   which has connections, threads and a clock of its own, does so when it has to ask Redis.
 */

#ifndef TOLLGATE_H
#define TOLLGATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes and versions ------------------------------------------------ */

/** The version of the binary interface that this header describes. */
#define TOLLGATE_ABI_VERSION 1u

/** The `retry_after_ns` of a cost that can never fit. */
#define TOLLGATE_NEVER UINT64_MAX

/**
 * 0 is success, a negative number an error; no number is ever reused. See
 * tollgate_status_str.
 */
typedef int32_t tollgate_status;

/** Success. */
#define TOLLGATE_OK 0

/** A required pointer is NULL. */
#define TOLLGATE_ERR_NULL (-1)

/**
 * A value is not legal: an unknown number, a wrong struct_size, a reserved
 * field that is not 0, or an object that was never initialised.
 */
#define TOLLGATE_ERR_ARGUMENT (-2)

/** A number is outside its legal range. */
#define TOLLGATE_ERR_RANGE (-3)

/** The text cannot be read. */
#define TOLLGATE_ERR_PARSE (-4)

/** A pointer is not aligned as its type or layout asks. */
#define TOLLGATE_ERR_ALIGN (-5)

/** The memory or buffer is too small. */
#define TOLLGATE_ERR_SIZE (-6)

/**
 * The memory holds no table or bucket, or one of another layout or
 * configuration.
 */
#define TOLLGATE_ERR_MISMATCH (-7)

/**
 * This bucket or table cannot hold this limit, or this processor has no
 * 128-bit compare-and-swap.
 */
#define TOLLGATE_ERR_UNSUPPORTED (-8)

/**
 * The binary interface of the library that is linked; compare it with
 * TOLLGATE_ABI_VERSION. Thread-safe.
 */
uint32_t tollgate_abi_version(void);

/** The version of the library, such as "0.1.0"; static. Thread-safe. */
const char *tollgate_version(void);

/** What a status means, in English; static, never NULL. Thread-safe. */
const char *tollgate_status_str(tollgate_status status);

/* Limits and decisions ----------------------------------------------------- */

/** Tokens refill steadily; a full bucket admits `burst` at once. */
#define TOLLGATE_TOKEN_BUCKET 0u

/** A queue of `burst` places that drains steadily; decisions carry a delay. */
#define TOLLGATE_LEAKY_BUCKET 1u

/** A counter that starts again with each window. */
#define TOLLGATE_FIXED_WINDOW 2u

/** Two counters, the earlier weighted by what the sliding window covers of it. */
#define TOLLGATE_SLIDING_WINDOW 3u

/** Every admission of the last period, one by one. */
#define TOLLGATE_SLIDING_LOG 4u

/** Units in flight, released by their holder or by expiry. */
#define TOLLGATE_CONCURRENCY 5u

/** Fixed windows begin at whole multiples of the period. */
#define TOLLGATE_ANCHOR_CLOCK 0u

/** Fixed windows begin at the first request that finds none open. */
#define TOLLGATE_ANCHOR_FIRST_REQUEST 1u

/** A limit's numbers. Plain data. */
typedef struct tollgate_limit_config {
    /** sizeof(tollgate_limit_config). */
    uint32_t struct_size;
    /** TOLLGATE_TOKEN_BUCKET to TOLLGATE_CONCURRENCY. */
    uint32_t algorithm;
    /** Units per period: 1 to 4294967295. */
    uint64_t limit;
    /**
     * Nanoseconds: 1000 (1 us) to 316224000000000000 (3660 days). Of a
     * concurrency limit: how long a hold lives that is not released.
     */
    uint64_t period_ns;
    /**
     * Units admitted at once: 1 to 4294967295, or 0 for `limit`. Only token
     * and leaky buckets may have another burst than their limit, and it must
     * refill within 2^62 ns (146 years).
     */
    uint64_t burst;
    /**
     * TOLLGATE_ANCHOR_CLOCK, or of a fixed window also
     * TOLLGATE_ANCHOR_FIRST_REQUEST.
     */
    uint32_t anchor;
    /** Must be 0. */
    uint32_t reserved;
} tollgate_limit_config;

/**
 * A limit, checked and prepared. Opaque: filled by tollgate_limit_init or
 * tollgate_limit_parse, then only read. It may be copied, and shared by
 * threads; a program that runs another version of the library makes its own.
 * Memory of zeros is no limit.
 */
typedef struct tollgate_limit {
    /** The library's. */
    uint64_t opaque[16];
} tollgate_limit;

/** The answer to one request. Plain data. */
typedef struct tollgate_decision {
    /**
     * The sustained allowance: units per period. 0 of a denial that no limit
     * gave, as the store does not answer and on_store_error is deny.
     */
    uint64_t limit;
    /**
     * Whole units admissible now, after this request. Not to be told, nor is
     * reset_after_ns, when the cost is above the burst: a store is not asked
     * then, and both may be 0.
     */
    uint64_t remaining;
    /**
     * Nanoseconds until this cost fits, if nobody else comes: 0 when
     * allowed, TOLLGATE_NEVER when the cost is above the burst.
     */
    uint64_t retry_after_ns;
    /** Nanoseconds until the bucket is full, or the window empty. */
    uint64_t reset_after_ns;
    /** Nanoseconds that an admitted request has to wait (leaky bucket only). */
    uint64_t delay_ns;
    /** 1 when admitted and charged, 0 when denied and nothing was charged. */
    uint32_t allowed;
    /** Always 0. */
    uint32_t reserved;
} tollgate_decision;

/**
 * Makes a limit from numbers.
 *
 * `message`: NULL, or room for `message_size` bytes that on an error, and
 * only then, receives the reason (what is wrong and what is legal) as a C
 * string, cut if need be. Errors: TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT.
 * Thread-safe.
 */
tollgate_status tollgate_limit_init(const tollgate_limit_config *config,
                                    tollgate_limit *limit,
                                    char *message,
                                    size_t message_size);

/**
 * Reads a limit from text: "100/s", "100/s burst 200", "700/m", "1/1.5s",
 * "1/30d", "fixed_window 10/m anchor first_request", or NGINX's "30r/m".
 * Units of time: ns us ms s m h d.
 *
 * `algorithm` applies where the text names none. `message` as in
 * tollgate_limit_init; it tells the byte that is wrong. Errors:
 * TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT for an
 * unknown `algorithm`. Thread-safe.
 */
tollgate_status tollgate_limit_parse(const char *text,
                                     size_t len,
                                     uint32_t algorithm,
                                     tollgate_limit *limit,
                                     char *message,
                                     size_t message_size);

/**
 * Tells a limit's numbers; the caller sets `config->struct_size` before.
 * Errors: TOLLGATE_ERR_ARGUMENT. Thread-safe.
 */
tollgate_status tollgate_limit_describe(const tollgate_limit *limit,
                                        tollgate_limit_config *config);

/**
 * Writes a limit as a C string that tollgate_limit_parse reads back.
 * `len`: NULL, or receives the length without the final NUL. 128 bytes are
 * always enough. Errors: TOLLGATE_ERR_SIZE. Thread-safe.
 */
tollgate_status tollgate_limit_format(const tollgate_limit *limit,
                                      char *text,
                                      size_t size,
                                      size_t *len);

/**
 * The number of an algorithm by its name ("token_bucket", "leaky_bucket",
 * "fixed_window", "sliding_window", "sliding_log", "concurrency").
 * Errors: TOLLGATE_ERR_PARSE. Thread-safe.
 */
tollgate_status tollgate_algorithm_parse(const char *text, size_t len, uint32_t *algorithm);

/** The name of an algorithm; static. NULL for an unknown number. Thread-safe. */
const char *tollgate_algorithm_str(uint32_t algorithm);

/* One bucket in the caller's memory ---------------------------------------- */

/**
 * One bucket: a limit and its state, in memory that the caller owns. It may
 * be shared by threads, and by processes that run the same library and map
 * the memory wherever they like.
 */
typedef struct tollgate_bucket tollgate_bucket;

/**
 * The size and alignment of a bucket's memory. A sliding log takes 16 bytes
 * a unit of its limit more. Errors: TOLLGATE_ERR_UNSUPPORTED for a
 * concurrency limit, which needs a table. Thread-safe.
 */
tollgate_status tollgate_bucket_layout(const tollgate_limit *limit, size_t *size, size_t *align);

/**
 * Makes a full bucket in `memory`, which nobody else may use meanwhile.
 * Errors: TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_SIZE, TOLLGATE_ERR_UNSUPPORTED.
 *
 * `memory` leads to `size` bytes that stay the bucket's while it is used.
 */
tollgate_status tollgate_bucket_init(void *memory,
                                     size_t size,
                                     const tollgate_limit *limit,
                                     tollgate_bucket **bucket);

/**
 * Finds the bucket that another thread or process made in `memory`.
 * Errors: TOLLGATE_ERR_MISMATCH when there is none, TOLLGATE_ERR_ALIGN,
 * TOLLGATE_ERR_SIZE.
 *
 * `memory` leads to `size` bytes: zeros, or a bucket of the same library.
 */
tollgate_status tollgate_bucket_attach(void *memory, size_t size, tollgate_bucket **bucket);

/**
 * Charges `cost` units if they fit; a cost of 0 only reads. `now_ns` is a
 * monotonic clock, the same for all who share the bucket. Any cost and time
 * are legal. Lock-free, allocates nothing; threads and processes may call it
 * at the same time.
 *
 * `bucket` comes from init or attach and its memory is still there.
 */
tollgate_status tollgate_bucket_check(const tollgate_bucket *bucket,
                                      uint64_t cost,
                                      uint64_t now_ns,
                                      tollgate_decision *decision);

/** The decision that tollgate_bucket_check would make, charging nothing. */
tollgate_status tollgate_bucket_peek(const tollgate_bucket *bucket,
                                     uint64_t cost,
                                     uint64_t now_ns,
                                     tollgate_decision *decision);

/**
 * Gives back `cost` units that were charged at `charged_at_ns`, the `now_ns` of
 * that check, because the request was admitted and then failed. Never above the
 * burst, and nothing that time has given back already. As tollgate_bucket_check for threads
 * and processes.
 */
tollgate_status tollgate_bucket_refund(const tollgate_bucket *bucket,
                                       uint64_t cost,
                                       uint64_t charged_at_ns);

/**
 * Changes the limit: tokens already spent stay spent. Nobody else may use
 * the bucket meanwhile. A log can only be changed to another log of at most
 * the entries it was laid out with. Errors: TOLLGATE_ERR_UNSUPPORTED.
 */
tollgate_status tollgate_bucket_set_limit(tollgate_bucket *bucket,
                                          const tollgate_limit *limit,
                                          uint64_t now_ns);

/* The keyed table in the caller's memory ----------------------------------- */

/**
 * The memory that tollgate_table_init is given holds zeros only, as fresh
 * pages of the system do: it is not cleared, and pages stay untouched until
 * keys come. Without this flag all of it is written once.
 */
#define TOLLGATE_MEMORY_IS_ZERO 1u

/** The most requests of one tollgate_table_check_all. */
#define TOLLGATE_MAX_LAYERS 16u

/** What a table is to hold. Plain data. */
typedef struct tollgate_table_config {
    /** sizeof(tollgate_table_config). */
    uint32_t struct_size;
    /** 0, or TOLLGATE_MEMORY_IS_ZERO. */
    uint32_t flags;
    /**
     * Keys, 16 bytes each (32 under a sliding window): 1 to 2^40, rounded up
     * to a multiple of 4.
     */
    uint64_t capacity;
    /** Keys that sliding logs and concurrency limits may follow; 0 for none. */
    uint64_t rows;
    /** The largest `limit` of those, 16 bytes an entry: 1 to 2^24; 0 without rows. */
    uint64_t row_entries;
    /**
     * A secret, from the system's random source. Keys that meet in one place
     * cannot be chosen without it.
     */
    uint64_t seed[2];
} tollgate_table_config;

/**
 * A process's view of a table: filled by tollgate_table_init or
 * tollgate_table_attach, and of use while the memory is mapped where it was.
 * Opaque; it may be copied, and shared by the threads of the process.
 */
typedef struct tollgate_table {
    /** The library's. */
    uint64_t opaque[32];
} tollgate_table;

/** What one request asks of one limit. Plain data. */
typedef struct tollgate_request {
    /**
     * The subject: any bytes, only read, and only during the call. NULL is
     * legal when `key_len` is 0.
     */
    const void *key;
    /** Bytes of the key. */
    size_t key_len;
    /** What the subject may use. */
    const tollgate_limit *limit;
    /** Units asked for; 0 only reads. */
    uint64_t cost;
} tollgate_request;

/**
 * Units in flight under a concurrency limit. Plain data; pass it back as it
 * is. All zeros is a hold of nothing, which may be released.
 */
typedef struct tollgate_hold {
    /** Where it is. */
    uint64_t row;
    /** Whose it is. */
    uint64_t fingerprint;
    /** The instant at which it ends by itself. */
    uint64_t expires_ns;
    /** How many units. */
    uint64_t units;
} tollgate_hold;

/** What a table has done and holds. Plain data. */
typedef struct tollgate_table_stats {
    /** Slots. */
    uint64_t capacity;
    /** Slots that were ever used. */
    uint64_t used;
    /** Buckets that were not idle when another key took their slot. */
    uint64_t evictions;
    /** Rows. */
    uint64_t rows;
    /** Rows that were ever used. */
    uint64_t rows_used;
    /** Rows that were not idle when another key took them. */
    uint64_t row_evictions;
} tollgate_table_stats;

/**
 * The size and alignment of a table's memory.
 * Errors: TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT. Thread-safe.
 */
tollgate_status tollgate_table_layout(const tollgate_table_config *config,
                                      size_t *size,
                                      size_t *align);

/**
 * The largest capacity whose layout fits in `size` bytes, beside the rows.
 * Errors: TOLLGATE_ERR_SIZE when not even four keys fit, TOLLGATE_ERR_RANGE.
 * Thread-safe.
 */
tollgate_status tollgate_table_capacity(size_t size,
                                        uint64_t rows,
                                        uint64_t row_entries,
                                        uint64_t *capacity);

/**
 * Makes an empty table in `memory`, whatever that holds; nobody else may use
 * it meanwhile. A refused init leaves it as it was. Errors:
 * TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_SIZE, TOLLGATE_ERR_RANGE,
 * TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_UNSUPPORTED.
 *
 * `memory` leads to `size` bytes that stay the table's while it is used.
 */
tollgate_status tollgate_table_init(void *memory,
                                    size_t size,
                                    const tollgate_table_config *config,
                                    tollgate_table *table);

/**
 * Finds the table that another thread or process made in `memory`.
 *
 * `config`: NULL, or what the table must have been made with; its seed is
 * not compared. Errors: TOLLGATE_ERR_MISMATCH when there is no table, or
 * another one; TOLLGATE_ERR_SIZE when it is larger than `size`;
 * TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_UNSUPPORTED.
 *
 * `memory` leads to `size` bytes that are shared with other users of the
 * table only.
 */
tollgate_status tollgate_table_attach(void *memory,
                                      size_t size,
                                      const tollgate_table_config *config,
                                      tollgate_table *table);

/**
 * Can this table hold this limit? Ask once, when the limit is configured.
 * Errors: TOLLGATE_ERR_UNSUPPORTED when a log or concurrency limit finds no
 * rows, or rows that are too short. Thread-safe.
 */
tollgate_status tollgate_table_accepts(const tollgate_table *table,
                                       const tollgate_limit *limit);

/**
 * Charges `cost` units to a key if they fit; a cost of 0 only reads.
 *
 * `now_ns` is a monotonic clock, the same for all who share the table. Any
 * key, cost and time are legal; an empty key is a key. A limit that
 * tollgate_table_accepts refuses is denied for ever. A concurrency limit is
 * only read here: see tollgate_table_acquire. Lock-free, allocates nothing;
 * threads and processes may call it at the same time.
 *
 * `table` is a view whose memory is still mapped; `key` leads to `key_len` bytes.
 */
tollgate_status tollgate_table_check(const tollgate_table *table,
                                     const void *key,
                                     size_t key_len,
                                     const tollgate_limit *limit,
                                     uint64_t cost,
                                     uint64_t now_ns,
                                     tollgate_decision *decision);

/** The decision that tollgate_table_check would make, charging nothing. */
tollgate_status tollgate_table_peek(const tollgate_table *table,
                                    const void *key,
                                    size_t key_len,
                                    const tollgate_limit *limit,
                                    uint64_t cost,
                                    uint64_t now_ns,
                                    tollgate_decision *decision);

/**
 * Gives back `cost` units that were charged at `charged_at_ns`, the `now_ns` of
 * that check, because the request was admitted and then failed. Never above the
 * burst, and nothing that time has given back already. Does nothing under a concurrency
 * limit, whose holds are released. As tollgate_table_check for threads and
 * processes.
 */
tollgate_status tollgate_table_refund(const tollgate_table *table,
                                      const void *key,
                                      size_t key_len,
                                      const tollgate_limit *limit,
                                      uint64_t cost,
                                      uint64_t charged_at_ns);

/**
 * Asks 1 to TOLLGATE_MAX_LAYERS limits at once: all are charged, or none.
 *
 * `decisions` has room for `count` answers. `*tightest` is the index of the
 * one that stands for all: of those that deny, the one that takes longest,
 * else the one that leaves least; the request was admitted if and only if
 * `decisions[*tightest].allowed`. `holds` has room for `count` holds, and may
 * be NULL when no limit is a concurrency limit. As tollgate_table_check for
 * threads and processes. Errors: TOLLGATE_ERR_RANGE for another count.
 */
tollgate_status tollgate_table_check_all(const tollgate_table *table,
                                         const tollgate_request *requests,
                                         size_t count,
                                         uint64_t now_ns,
                                         tollgate_decision *decisions,
                                         tollgate_hold *holds,
                                         size_t *tightest);

/**
 * Gives back what tollgate_table_check_all charged when it admitted, at
 * `charged_at_ns`, the `now_ns` of that check; holds
 * are given back with tollgate_table_release. As tollgate_table_check for
 * threads and processes. Errors: TOLLGATE_ERR_RANGE for another count.
 */
tollgate_status tollgate_table_refund_all(const tollgate_table *table,
                                          const tollgate_request *requests,
                                          size_t count,
                                          uint64_t charged_at_ns);

/**
 * Checks any number of independent requests, each as tollgate_table_check
 * would; `decisions[i]` answers `requests[i]`. Their memory is fetched ahead,
 * so that eight or more at once cost less than one by one. Nothing is
 * checked when one of them is not legal.
 */
tollgate_status tollgate_table_check_batch(const tollgate_table *table,
                                           const tollgate_request *requests,
                                           size_t count,
                                           uint64_t now_ns,
                                           tollgate_decision *decisions);

/**
 * Takes `cost` units in flight under a concurrency limit, until they are
 * released or the limit's period is over. `*hold` is of no units when the
 * request was denied. As tollgate_table_check for threads and processes.
 * Errors: TOLLGATE_ERR_UNSUPPORTED for another algorithm, or a table without
 * long enough rows.
 */
tollgate_status tollgate_table_acquire(const tollgate_table *table,
                                       const void *key,
                                       size_t key_len,
                                       const tollgate_limit *limit,
                                       uint64_t cost,
                                       uint64_t now_ns,
                                       tollgate_decision *decision,
                                       tollgate_hold *hold);

/**
 * Gives back the units of a hold; those that have expired are gone already.
 * Release each hold once. As tollgate_table_check for threads and processes;
 * another process than the one that acquired may release.
 */
tollgate_status tollgate_table_release(const tollgate_table *table,
                                       const tollgate_hold *hold);

/**
 * Reads the table's counters, one after the other. As tollgate_table_check
 * for threads and processes.
 */
tollgate_status tollgate_table_stats_read(const tollgate_table *table,
                                          tollgate_table_stats *stats);

/**
 * Counts the buckets that are in use at `now_ns`. Reads the whole table: for
 * a page of metrics, not for the request path. As tollgate_table_check for
 * threads and processes.
 */
tollgate_status tollgate_table_live(const tollgate_table *table,
                                    uint64_t now_ns,
                                    uint64_t *live);

/* The rules file: compiled off the request path, asked on it --------------- */

/** The longest name of a policy or header field, with its final NUL. */
#define TOLLGATE_NAME_SIZE 65u

/** The most header fields that a rules document may name. */
#define TOLLGATE_MAX_HEADERS 64u

/** Always enough room for the line of tollgate_rules_notice. */
#define TOLLGATE_NOTICE_SIZE 160u

/** It admitted, and was charged. */
#define TOLLGATE_OUTCOME_ADMITTED 0u

/** It denied. */
#define TOLLGATE_OUTCOME_DENIED 1u

/** It would have admitted, but another denied: nothing was charged. */
#define TOLLGATE_OUTCOME_SPARED 2u

/** In dry run: it would have denied. */
#define TOLLGATE_OUTCOME_WOULD_DENY 3u

/** No policy whose limits the store counts had a say. */
#define TOLLGATE_SOURCE_LOCAL 0u

/** The store's policies were paid from tokens that were fetched ahead. */
#define TOLLGATE_SOURCE_LEASE 1u

/** A denial that the store gave earlier, and that still holds. */
#define TOLLGATE_SOURCE_DENIAL 2u

/** The store was asked. */
#define TOLLGATE_SOURCE_ASKED 3u

/** The store did not answer: on_store_error decided for a policy, or several. */
#define TOLLGATE_SOURCE_FALLBACK 4u

/**
 * A rules document, compiled. It is made of memory of the library's own, and
 * given back with tollgate_rules_free.
 */
typedef struct tollgate_rules tollgate_rules;

/** What a policy is. Plain data; the name lives as long as the rules. */
typedef struct tollgate_policy {
    /** Its name. */
    const char *name;
    /** Bytes of the name; no NUL follows. */
    size_t name_len;
    /** Its limits, for subjects without an override. */
    uint32_t limits;
    /** 1 when it is counted and not enforced, else 0. */
    uint32_t dry_run;
    /** Rows that give a subject other limits. */
    uint64_t overrides;
    /** 1 when its limits are to be counted in Redis, else 0. */
    uint32_t shared;
    /** 0. */
    uint32_t reserved;
} tollgate_policy;

/** Bytes with their length. `data` is NULL for what is not there. */
typedef struct tollgate_bytes {
    /** Any bytes, or NULL. */
    const void *data;
    /** How many. */
    size_t len;
} tollgate_bytes;

/**
 * What a host knows of a request. All of it may be the client's word, but
 * for the route and the peer. Plain data.
 */
typedef struct tollgate_attributes {
    /** sizeof(tollgate_attributes). */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** The name that the host's configuration gives the place. */
    tollgate_bytes route;
    /** Such as "GET". */
    tollgate_bytes method;
    /** Without a port. */
    tollgate_bytes host;
    /**
     * Without the query, decoded and normalised: as the client sent it, it is
     * the client's to choose which rules match (tollgate_http_path).
     */
    tollgate_bytes path;
    /**
     * The address of who opened the connection, as text such as "192.0.2.1"
     * or "2001:db8::1"; not there for a local socket.
     */
    tollgate_bytes peer;
    /**
     * The values of the header fields that tollgate_rules_header names, in
     * its order.
     */
    const tollgate_bytes *headers;
    /** How many: what tollgate_rules_header_count tells. */
    size_t header_count;
} tollgate_attributes;

/** What one limit of one policy said. Plain data. */
typedef struct tollgate_layer {
    /** The policy's index, as for tollgate_rules_policy. */
    uint32_t policy;
    /** Which of its limits, from 0. */
    uint32_t limit;
    /** TOLLGATE_OUTCOME_ADMITTED to TOLLGATE_OUTCOME_WOULD_DENY. */
    uint32_t outcome;
    /** 1 when the limit comes from an override, else 0. */
    uint32_t overridden;
    /** Its decision. */
    tollgate_decision decision;
    /** Units in flight, under a concurrency limit. */
    tollgate_hold hold;
} tollgate_layer;

/** The answer to one request. Plain data, of use without the rules. */
typedef struct tollgate_answer {
    /** 1 when the request may pass, else 0. */
    uint32_t allowed;
    /**
     * The HTTP status of a denial: 401 when an identity is missing, else the
     * document's (429; 422 of a cost that can never fit; 503 when the store
     * does not answer and on_store_error is deny); 0 when it may pass.
     */
    uint32_t status;
    /** Layers that follow. */
    uint32_t count;
    /**
     * The layer that stands for all: of those that deny the one that takes
     * longest, else the one that leaves least; `count` when none is enforced.
     */
    uint32_t tightest;
    /** Nanoseconds that an admitted request has to wait. */
    uint64_t delay_ns;
    /**
     * The policy of the tightest layer, or the one that needs an identity; a
     * C string.
     */
    char policy[TOLLGATE_NAME_SIZE];
    /** The header field that is missing, a C string; empty if none is. */
    char missing[TOLLGATE_NAME_SIZE];
    /**
     * 1 when more limits matched than TOLLGATE_MAX_LAYERS: those further on in
     * the document were not asked.
     */
    uint8_t overflow;
    /** What it rests on: TOLLGATE_SOURCE_LOCAL to TOLLGATE_SOURCE_FALLBACK. */
    uint8_t source;
    /**
     * Layers, one bit each, that were decided as their policy's
     * on_store_error says, because the store did not answer.
     */
    uint16_t degraded;
    /** 0. */
    uint8_t reserved[2];
    /** The limit of the tightest layer, for tollgate_http_fields. */
    tollgate_limit limit;
    /** What each limit said. */
    tollgate_layer layers[TOLLGATE_MAX_LAYERS];
} tollgate_answer;

/**
 * Compiles a rules document. It is taken whole, or not at all.
 *
 * `seed` is a secret, from the system's random source. `unix_at_zero_ns` is
 * the UNIX time at which the clock of `now_ns` shows zero: the UNIX time of
 * now less what that clock shows now, in nanoseconds, and 0 when it is the
 * UNIX time; quotas by the calendar month go by it. `message`: NULL, or room for `message_size` bytes that on an error receives what is wrong, one
 * line each ("line 3, column 7: policies[0].name: ..."), as a C string, cut
 * if need be. Allocates: call it off the request path. Errors:
 * TOLLGATE_ERR_PARSE.
 */
tollgate_status tollgate_rules_parse(const char *text,
                                     size_t len,
                                     const uint64_t *seed,
                                     uint64_t unix_at_zero_ns,
                                     tollgate_rules **rules,
                                     char *message,
                                     size_t message_size);

/**
 * Gives compiled rules back. NULL is legal, and does nothing. Nobody else may
 * use them any more.
 *
 * `rules` is NULL or comes from tollgate_rules_parse, and was not freed.
 */
void tollgate_rules_free(tollgate_rules *rules);

/** How many header fields requests must bring along. */
tollgate_status tollgate_rules_header_count(const tollgate_rules *rules, size_t *count);

/**
 * The name of such a header field, in lower case; no NUL follows. It lives as
 * long as the rules. Errors: TOLLGATE_ERR_RANGE.
 */
tollgate_status tollgate_rules_header(const tollgate_rules *rules,
                                      size_t index,
                                      const char **name,
                                      size_t *len);

/** How many policies there are; the default, if any, is the last. */
tollgate_status tollgate_rules_policy_count(const tollgate_rules *rules, size_t *count);

/**
 * What the document asks for and does not get, such as "policy daily: counted
 * on this machine, as this host has no Redis", for the host to show when it
 * begins to use the rules.
 *
 * `has_store`: 1 when the host counts in Redis what policies ask to be counted
 * there, else 0. `index` counts from 0. `*len` is the length of the line; no NUL follows.
 * Allocates: call it off the request path. Concurrent calls are fine. Errors:
 * TOLLGATE_ERR_RANGE past the last notice, TOLLGATE_ERR_SIZE for a buffer
 * that is too small; TOLLGATE_NOTICE_SIZE is always enough.
 */
tollgate_status tollgate_rules_notice(const tollgate_rules *rules,
                                      uint32_t has_store,
                                      size_t index,
                                      char *buffer,
                                      size_t size,
                                      size_t *len);

/** What a policy is. Errors: TOLLGATE_ERR_RANGE. */
tollgate_status tollgate_rules_policy(const tollgate_rules *rules,
                                      size_t index,
                                      tollgate_policy *policy);

/**
 * Which header fields answers carry: TOLLGATE_FIELDS_OFF to
 * TOLLGATE_FIELDS_RATELIMIT.
 */
tollgate_status tollgate_rules_fields(const tollgate_rules *rules, uint32_t *family);

/**
 * Can this table hold every limit of the rules, overrides included? Ask when
 * rules are loaded. `message` as in tollgate_rules_parse, one line. Errors:
 * TOLLGATE_ERR_UNSUPPORTED.
 */
tollgate_status tollgate_rules_accepts(const tollgate_rules *rules,
                                       const tollgate_table *table,
                                       char *message,
                                       size_t message_size);

/**
 * Asks a table all that the rules ask of one request: every policy that
 * matches, all or none.
 *
 * `now_ns` is a monotonic clock, the same for all who share the table. Any
 * attributes and time are legal. Lock-free, allocates nothing; threads and
 * processes may call it at the same time, on the same rules too. Holds in the
 * answer are given back with tollgate_rules_release. Errors:
 * TOLLGATE_ERR_ARGUMENT for a wrong struct_size or header_count.
 *
 * `table` is a view whose memory is still mapped; the pointers lead to what
 * their types say.
 */
tollgate_status tollgate_rules_check(const tollgate_rules *rules,
                                     const tollgate_table *table,
                                     const tollgate_attributes *attributes,
                                     uint64_t now_ns,
                                     tollgate_answer *answer);

/**
 * Gives back the units in flight of an answer, when the request is over. As
 * tollgate_rules_check for threads and processes.
 */
tollgate_status tollgate_rules_release(const tollgate_table *table,
                                       const tollgate_answer *answer);

/* A decision as header fields and a problem body --------------------------- */

/** No fields but Retry-After. */
#define TOLLGATE_FIELDS_OFF 0u

/**
 * X-RateLimit-Limit (the burst), X-RateLimit-Remaining, X-RateLimit-Reset
 * (seconds until the bucket is full; of a denial at least Retry-After).
 */
#define TOLLGATE_FIELDS_X_RATELIMIT 1u

/**
 * RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset
 * (draft-ietf-httpapi-ratelimit-headers-03).
 */
#define TOLLGATE_FIELDS_RATELIMIT_03 2u

/**
 * RateLimit-Policy and RateLimit
 * (draft-ietf-httpapi-ratelimit-headers-11).
 */
#define TOLLGATE_FIELDS_RATELIMIT 3u

/** The most fields of one answer. */
#define TOLLGATE_HTTP_FIELDS_MAX 4u

/** Always enough room for the values of one answer's fields. */
#define TOLLGATE_HTTP_BUFFER_SIZE 512u

/** Always enough room for a problem body. */
#define TOLLGATE_HTTP_PROBLEM_SIZE 1024u

/**
 * One header field. Plain data; the name is static, the value lies in the
 * caller's buffer; neither ends with NUL.
 */
typedef struct tollgate_http_field {
    /** Its name. */
    const char *name;
    /** Bytes of the name. */
    size_t name_len;
    /** Its value. */
    const char *value;
    /** Bytes of the value. */
    size_t value_len;
} tollgate_http_field;

/**
 * Writes the fields of one answer: the family's, and with a denial that can
 * ever end also Retry-After (whole seconds, rounded up, at least 1).
 *
 * `name` is the policy's, for TOLLGATE_FIELDS_RATELIMIT; what a structured
 * field cannot hold becomes `?`, and it is cut after 64 bytes. `fields` has
 * room for TOLLGATE_HTTP_FIELDS_MAX. Errors: TOLLGATE_ERR_SIZE,
 * TOLLGATE_ERR_PARSE for a name that is not UTF-8, TOLLGATE_ERR_ARGUMENT.
 * Thread-safe.
 */
tollgate_status tollgate_http_fields(uint32_t family,
                                     const char *name,
                                     size_t name_len,
                                     const tollgate_limit *limit,
                                     const tollgate_decision *decision,
                                     char *buffer,
                                     size_t size,
                                     tollgate_http_field *fields,
                                     size_t *count);

/**
 * Writes the application/problem+json body of a denial; `*len` is its
 * length (no NUL follows). `status` is the HTTP status, 400 to 599. `name`
 * as in tollgate_http_fields. Errors: TOLLGATE_ERR_SIZE, TOLLGATE_ERR_RANGE
 * for another status, TOLLGATE_ERR_PARSE. Thread-safe.
 */
tollgate_status tollgate_http_problem(uint32_t status,
                                      const char *name,
                                      size_t name_len,
                                      const tollgate_decision *decision,
                                      char *buffer,
                                      size_t size,
                                      size_t *len);

/**
 * Writes the fields of a 401: WWW-Authenticate, which names the header field
 * that is missing. `fields` has room for TOLLGATE_HTTP_FIELDS_MAX. Errors:
 * TOLLGATE_ERR_SIZE, TOLLGATE_ERR_PARSE for a name that is not UTF-8.
 * Thread-safe.
 */
tollgate_status tollgate_http_missing_fields(const char *missing,
                                             size_t missing_len,
                                             char *buffer,
                                             size_t size,
                                             tollgate_http_field *fields,
                                             size_t *count);

/**
 * Writes the application/problem+json body of a 401; `*len` is its length
 * (no NUL follows). `missing` is the header field that is missing. Errors:
 * as tollgate_http_missing_fields. Thread-safe.
 */
tollgate_status tollgate_http_missing_problem(const char *missing,
                                              size_t missing_len,
                                              char *buffer,
                                              size_t size,
                                              size_t *len);

/**
 * Makes of a request's target, as the client sent it, the path that rules
 * match, as NGINX does: without query and fragment, percent signs decoded
 * once, `.` and `..` resolved, slashes merged. Without this, `/x/../login`
 * would not be under the limit of `/login`.
 *
 * `path` is never longer than the target, does not end with NUL, and has room
 * for `size` >= `len` bytes, apart from the target's. Any bytes are legal; a
 * whole address, as proxies are sent, has to be without its scheme and host.
 * Errors: TOLLGATE_ERR_SIZE. Thread-safe.
 */
tollgate_status tollgate_http_path(const char *target,
                                   size_t len,
                                   char *path,
                                   size_t size,
                                   size_t *path_len);

/**
 * Is it a gRPC request, by the value of its Content-Type? `*is` is 1 or 0.
 * Its denials are of HTTP status 200, without a body, and with the fields of
 * tollgate_http_grpc. Thread-safe.
 */
tollgate_status tollgate_http_is_grpc(const char *content_type, size_t len, uint32_t *is);

/**
 * Writes the fields of a denial that a gRPC client can read: content-type,
 * grpc-status (8, RESOURCE_EXHAUSTED) and grpc-message. `name` and `fields`
 * as in tollgate_http_fields. With `decision` NULL it is the answer to a
 * request without an identity (16, UNAUTHENTICATED), and `name` the header
 * field that is missing. Errors: as tollgate_http_missing_fields.
 * Thread-safe.
 */
tollgate_status tollgate_http_grpc(const char *name,
                                   size_t name_len,
                                   const tollgate_decision *decision,
                                   char *buffer,
                                   size_t size,
                                   tollgate_http_field *fields,
                                   size_t *count);

/* Per-limit counters in the caller's memory -------------------------------- */

/**
 * What became of the requests that one limit was asked about. 64 bytes of
 * zeros are ready for use. Opaque; may be shared by threads and processes.
 */
typedef struct tollgate_counters {
    /** The library's. */
    uint64_t opaque[8];
} tollgate_counters;

/** Counters at one time. Plain data. */
typedef struct tollgate_counters_snapshot {
    /** Admitted, those that had to wait included. */
    uint64_t allowed;
    /** Denied. */
    uint64_t rejected;
    /** Admitted with a delay. */
    uint64_t delayed;
    /** Let through by a dry run that would have been denied. */
    uint64_t rejected_dry_run;
    /** Let through at once by a dry run that would have been delayed. */
    uint64_t delayed_dry_run;
    /** Could not be decided. */
    uint64_t errors;
} tollgate_counters_snapshot;

/**
 * Counts one decision; `dry_run` is 1 when it was not enforced, else 0.
 * Threads and processes may call it at the same time.
 */
tollgate_status tollgate_counters_record(const tollgate_counters *counters,
                                         const tollgate_decision *decision,
                                         uint32_t dry_run);

/**
 * Counts a request that could not be decided. As tollgate_counters_record
 * for threads and processes.
 */
tollgate_status tollgate_counters_error(const tollgate_counters *counters);

/**
 * Reads all counters, one after the other. As tollgate_counters_record for
 * threads and processes.
 */
tollgate_status tollgate_counters_read(const tollgate_counters *counters,
                                       tollgate_counters_snapshot *snapshot);

/* How fast decisions are, and which keys are limited most ------------------ */

/** Powers of two that a histogram's snapshot tells: 2^0 to 2^36 ns (69 s). */
#define TOLLGATE_HISTOGRAM_POWERS 37u

/** The most keys of a tollgate_top. */
#define TOLLGATE_TOP_KEYS 64u

/** Room for what a key is, with its final NUL. */
#define TOLLGATE_LABEL_SIZE 129u

/**
 * Counts of spans of time, in memory that the caller owns: as
 * tollgate_histogram_layout says, zeros are ready for use. May be shared by
 * threads, and by processes that run the same library.
 */
typedef struct tollgate_histogram tollgate_histogram;

/**
 * The keys that are limited most, by the space-saving algorithm of Metwally,
 * Agrawal and El Abbadi: fixed memory that the caller owns, as
 * tollgate_top_layout says; zeros are ready for use. May be shared by
 * threads, and by processes that run the same library.
 */
typedef struct tollgate_top tollgate_top;

/** A histogram at one time. Plain data. */
typedef struct tollgate_histogram_snapshot {
    /** Spans that were counted. */
    uint64_t count;
    /** All of them together, in nanoseconds. */
    uint64_t sum_ns;
    /**
     * Half of them are no longer than this, which is at most an eighth too
     * long; 0 without any.
     */
    uint64_t p50_ns;
    /** As p50_ns, for 99 of 100. */
    uint64_t p99_ns;
    /** As p50_ns, for 999 of 1000. */
    uint64_t p999_ns;
    /** `at_most[i]` of them were at most 2^i nanoseconds; exact. */
    uint64_t at_most[TOLLGATE_HISTOGRAM_POWERS];
} tollgate_histogram_snapshot;

/** One of the keys that are limited most. Plain data. */
typedef struct tollgate_top_key {
    /** How often it was denied, or more. */
    uint64_t count;
    /** At most so many of them are not its own. */
    uint64_t error;
    /** The policy, a C string. */
    char policy[TOLLGATE_NAME_SIZE];
    /**
     * What it is ("user=alice,ip=192.0.2.1"), a C string of printable UTF-8;
     * a credential is told by the first bytes of its SHA-256.
     */
    char key[TOLLGATE_LABEL_SIZE];
    /** 0. */
    uint8_t reserved[6];
} tollgate_top_key;

/** The size and alignment of a histogram's memory. */
tollgate_status tollgate_histogram_layout(size_t *size, size_t *align);

/**
 * Counts one span, in nanoseconds. Threads and processes may call it at the
 * same time.
 *
 * `histogram` leads to memory as tollgate_histogram_layout says.
 */
tollgate_status tollgate_histogram_record(const tollgate_histogram *histogram,
                                          uint64_t span_ns);

/** Reads all counters. As tollgate_histogram_record for threads and processes. */
tollgate_status tollgate_histogram_read(const tollgate_histogram *histogram,
                                        tollgate_histogram_snapshot *snapshot);

/** The size and alignment of the memory of a tollgate_top. */
tollgate_status tollgate_top_layout(size_t *size, size_t *align);

/**
 * Counts the keys of a request that tollgate_rules_check denied: call it for
 * denials only. The keys of all limits that deny now are counted. Threads and
 * processes may call it at the same time. Errors: as tollgate_rules_check.
 */
tollgate_status tollgate_top_record(const tollgate_top *top,
                                    const tollgate_rules *rules,
                                    const tollgate_table *table,
                                    const tollgate_attributes *attributes,
                                    uint64_t now_ns);

/**
 * As tollgate_top_record, when the answer is at hand: the keys of those limits
 * are counted that denied in `answer`, wherever they are counted. The
 * attributes are those that were asked about.
 */
tollgate_status tollgate_top_record_answer(const tollgate_top *top,
                                           const tollgate_rules *rules,
                                           const tollgate_table *table,
                                           const tollgate_attributes *attributes,
                                           const tollgate_answer *answer);

/**
 * Reads the keys that were limited most, most first. `keys` has room for
 * `size`; `*count` tells how many were written. As tollgate_top_record for
 * threads and processes.
 */
tollgate_status tollgate_top_read(const tollgate_top *top,
                                  tollgate_top_key *keys,
                                  size_t size,
                                  size_t *count);

/* What a store that machines share was asked, and how it went -------------- */

/**
 * Counters of one store, in memory that the caller owns: as
 * tollgate_store_metrics_layout says, zeros are ready for use. May be shared
 * by threads, and by processes that run the same library.
 */
typedef struct tollgate_store_metrics tollgate_store_metrics;

/** The counters at one time. Plain data. */
typedef struct tollgate_store_snapshot {
    /** Calls that were sent. */
    uint64_t calls;
    /** Calls that were answered. */
    uint64_t replies;
    /** Policies that were answered from tokens fetched ahead. */
    uint64_t lease_hits;
    /** Policies that were answered from an earlier denial. */
    uint64_t denial_hits;
    /** Calls to fetch more before anyone has to wait. */
    uint64_t prefetches;
    /** Calls that gave back what was not used. */
    uint64_t give_backs;
    /** Calls that were not answered in time. */
    uint64_t timeouts;
    /** Calls that failed because of the store or the connection. */
    uint64_t failures;
    /** Calls that failed because of what their key holds. */
    uint64_t key_failures;
    /** Policies that were answered on this machine, as the store was away. */
    uint64_t fallback_local;
    /** Policies that admitted without counting, as the store was away. */
    uint64_t fallback_allow;
    /** Policies that denied, as the store was away. */
    uint64_t fallback_deny;
    /** How often a circuit breaker opened. */
    uint64_t opened;
    /** Breakers that are open or on probe now. */
    uint64_t open;
    /** Requests that wait for an answer now. */
    uint64_t waiting;
    /** Connections that were made. */
    uint64_t connected;
    /** How long answers took, from the call to the reply. */
    tollgate_histogram_snapshot latency;
} tollgate_store_snapshot;

/** The size and alignment of the memory of a tollgate_store_metrics. */
tollgate_status tollgate_store_metrics_layout(size_t *size, size_t *align);

/**
 * Reads all counters, one after the other. Threads and processes may call it
 * at the same time.
 *
 * `metrics` leads to memory as tollgate_store_metrics_layout says.
 */
tollgate_status tollgate_store_metrics_read(const tollgate_store_metrics *metrics,
                                            tollgate_store_snapshot *snapshot);

/* Limits that many machines share through Redis, without a socket of its own  */

/** The addresses are nodes of a Redis Cluster. */
#define TOLLGATE_REDIS_CLUSTER 1u

/** It is not told which of the instances this one is. */
#define TOLLGATE_NO_INSTANCE UINT64_MAX

/** The circuit breaker is closed: the store is asked. */
#define TOLLGATE_BREAKER_CLOSED 0u

/** It is open: the store is not asked. */
#define TOLLGATE_BREAKER_OPEN 1u

/** It is on probe: one small write is under way. */
#define TOLLGATE_BREAKER_HALF_OPEN 2u

/**
 * The limits of policies with `"store": "redis"`, as one thread asks them. It
 * owns no socket, reads no clock and starts nothing. After any call that may
 * give it something to do, the host
 *
 * 1. does what tollgate_redis_next_action says, until that is
 *    TOLLGATE_ACTION_NONE;
 * 2. writes what tollgate_redis_transmit has, for each link that is open;
 * 3. takes the answers of tollgate_redis_answer, until there is none;
 * 4. sets one timer, to tollgate_redis_timeout, at which it calls
 *    tollgate_redis_process.
 *
 * Bytes that come go where tollgate_redis_receive says; then
 * tollgate_redis_process. It is made of memory of the library's own, given
 * back with tollgate_redis_free, and used by one thread at a time.
 */
typedef struct tollgate_redis tollgate_redis;

/**
 * How Redis is reached, and shared. Zeros stand for the defaults, but for
 * `struct_size`, the addresses and `instance`. Plain data.
 */
typedef struct tollgate_redis_config {
    /** sizeof(tollgate_redis_config). */
    uint32_t struct_size;
    /** 0, or TOLLGATE_REDIS_CLUSTER. */
    uint32_t flags;
    /**
     * Where it is: "host:port" or "unix:/path", of up to 255 bytes. Of
     * several one is used at a time, the next when it cannot be reached or is
     * a replica; of a cluster any of its nodes.
     */
    const tollgate_bytes *addresses;
    /** How many; at least 1. */
    size_t address_count;
    /** The user of Redis's access lists; NULL for the default user. */
    tollgate_bytes username;
    /** The password; NULL for none. */
    tollgate_bytes password;
    /**
     * The part of every limit that this region has: "60/100", or "60-100/100"
     * for that from 60 to 100; NULL for the whole.
     */
    tollgate_bytes region;
    /** The database, by number; a cluster has 0 only. */
    uint32_t database;
    /**
     * Threads or processes that each have a tollgate_redis and share a table;
     * 1 to 1,024. Default 1.
     */
    uint32_t workers;
    /**
     * Machines that share the limits: each falls back to its piece while the
     * store is away; 1 to 10,000. Default 1.
     */
    uint64_t instances;
    /**
     * Which of them this one is, from 0, or TOLLGATE_NO_INSTANCE: the
     * remainders of divisions are then given to nobody.
     */
    uint64_t instance;
    /**
     * How long a request waits for policies that name no timeout, in
     * nanoseconds; 100,000 to 10,000,000,000. Default 5 ms.
     */
    uint64_t timeout_ns;
    /**
     * Requests that may wait at a time, and calls that nobody waits for; more
     * are decided without the store. 1 to 65,536. Default 512.
     */
    uint32_t waiting;
    /**
     * Keys whose tokens and denials are remembered; 8 to 16,777,216. Default
     * 4,096.
     */
    uint32_t keys;
    /**
     * Requests in flight under concurrency limits that can be released before
     * they expire; up to 16,777,216. Default 1,024.
     */
    uint32_t holds;
    /** 0. */
    uint32_t reserved;
    /**
     * Different for each tollgate_redis anywhere: from the system's random
     * source.
     */
    uint64_t seed;
} tollgate_redis_config;

/**
 * Makes an engine; nothing is connected yet. `message`: NULL, or room for
 * `message_size` bytes that on an error receives what is wrong, as a C
 * string. Allocates all memory that it will need, but for what a cluster's
 * nodes take when they are first met. Errors: TOLLGATE_ERR_ARGUMENT,
 * TOLLGATE_ERR_RANGE.
 */
tollgate_status tollgate_redis_create(const tollgate_redis_config *config,
                                      tollgate_redis **redis,
                                      char *message,
                                      size_t message_size);

/**
 * Gives an engine back; who waits is not told. NULL is legal, and does
 * nothing.
 *
 * `redis` is NULL or comes from tollgate_redis_create, and was not freed.
 */
void tollgate_redis_free(tollgate_redis *redis);

/**
 * Can Redis count every limit that these rules have it count? Ask when rules
 * are loaded. `message` as in tollgate_redis_create. Errors:
 * TOLLGATE_ERR_UNSUPPORTED; of the configuration as there.
 */
tollgate_status tollgate_redis_accepts(const tollgate_redis_config *config,
                                       const tollgate_rules *rules,
                                       char *message,
                                       size_t message_size);

/**
 * Asks all that the rules ask of one request, as tollgate_rules_check does:
 * limits of the store's policies are paid from what was fetched ahead, denied
 * by a denial that still holds, asked, or decided without the store when that
 * is away; all others are counted in `table`.
 *
 * `*pending` is 0 when the answer is there. Else nothing is written to
 * `answer`; it comes by tollgate_redis_answer, together with `user`, and
 * `*pending` is its number: until then it may be cancelled with it, and
 * `rules` stay. Of the attributes nothing is kept. Allocates nothing. Errors:
 * as tollgate_rules_check.
 */
tollgate_status tollgate_redis_check(tollgate_redis *redis,
                                     const tollgate_rules *rules,
                                     const tollgate_table *table,
                                     const tollgate_store_metrics *metrics,
                                     const tollgate_attributes *attributes,
                                     uint64_t now_ns,
                                     uint64_t user,
                                     tollgate_answer *answer,
                                     uint64_t *pending);

/**
 * The next request that waited and is answered: `*pending` is the number that
 * tollgate_redis_check gave, `*user` what came with it. 0 when there is none;
 * then nothing else is written. Allocates nothing.
 */
tollgate_status tollgate_redis_answer(tollgate_redis *redis,
                                      const tollgate_table *table,
                                      const tollgate_store_metrics *metrics,
                                      uint64_t now_ns,
                                      uint64_t *pending,
                                      uint64_t *user,
                                      tollgate_answer *answer);

/**
 * The client of a request that waits is gone: its answer is not told, and
 * what it was charged goes back. A number that is not waiting any more is
 * legal, and does nothing.
 */
tollgate_status tollgate_redis_cancel(tollgate_redis *redis,
                                      const tollgate_table *table,
                                      const tollgate_store_metrics *metrics,
                                      uint64_t now_ns,
                                      uint64_t pending);

/**
 * Gives back units in flight of an answer, the store's or the table's, when
 * the request is over: what tollgate_table_release is to an answer of
 * tollgate_rules_check. A hold that was given back, or that has expired, is
 * legal, and does nothing.
 */
tollgate_status tollgate_redis_release(tollgate_redis *redis,
                                       const tollgate_table *table,
                                       const tollgate_store_metrics *metrics,
                                       uint64_t now_ns,
                                       const tollgate_hold *hold);

/**
 * Reads what came, and gives up what is late: after bytes came, when a
 * connection is there or gone, and at tollgate_redis_timeout.
 */
tollgate_status tollgate_redis_process(tollgate_redis *redis,
                                       const tollgate_table *table,
                                       const tollgate_store_metrics *metrics,
                                       uint64_t now_ns);

/**
 * Gives back to the store what was fetched ahead and not spent, and cancels
 * all that wait: the host ends. It moves bytes as before until `in_flight` of
 * tollgate_redis_read_state is 0, for as long as it can wait, and closes then:
 * what was asked for before may bring units yet, which go back when they come.
 * Nothing is fetched ahead any more.
 */
tollgate_status tollgate_redis_drain(tollgate_redis *redis,
                                     const tollgate_table *table,
                                     const tollgate_store_metrics *metrics,
                                     uint64_t now_ns);

/* The bytes of a shared store's connections, and the time ------------------ */

/** There is nothing to do. */
#define TOLLGATE_ACTION_NONE 0u

/**
 * Open a connection to the address, then call tollgate_redis_connected, or
 * tollgate_redis_disconnected if it fails.
 */
#define TOLLGATE_ACTION_CONNECT 1u

/**
 * Close the connection, or stop opening it; tollgate_redis_disconnected is
 * not called for it.
 */
#define TOLLGATE_ACTION_CLOSE 2u

/**
 * What the host is to do. Plain data; the pointers lead to memory that is
 * good until the next call.
 */
typedef struct tollgate_redis_action {
    /** TOLLGATE_ACTION_NONE to TOLLGATE_ACTION_CLOSE. */
    uint32_t kind;
    /** The link's number. */
    uint32_t link;
    /**
     * Where to connect: "host:port", the port behind the last colon, or
     * "unix:/path".
     */
    tollgate_bytes address;
    /** Why to close: one word, such as "auth". */
    tollgate_bytes reason;
    /** The server's own words, up to 128 bytes; may be empty. */
    tollgate_bytes words;
} tollgate_redis_action;

/** How things are now. Plain data. */
typedef struct tollgate_redis_state {
    /** TOLLGATE_BREAKER_CLOSED to TOLLGATE_BREAKER_HALF_OPEN. */
    uint32_t breaker;
    /** 1 when a connection takes calls, else 0. */
    uint32_t ready;
    /** Links are numbered from 0, below this. */
    uint32_t links;
    /** 1 when it is ready, and no node of a cluster is missing, else 0. */
    uint32_t whole;
    /** Requests that wait for an answer. */
    uint64_t waiting;
    /** Calls that were not answered yet. */
    uint64_t in_flight;
    /** Units fetched ahead that may still be spent. */
    uint64_t held;
    /**
     * The last thing that went wrong, in a word such as "timeout", "auth",
     * "out_of_memory", "disconnected" or "not_connected"; empty if nothing
     * ever did. Static.
     */
    tollgate_bytes trouble;
    /**
     * The server's own words about it, up to 128 bytes; may be empty. Good
     * until the next call.
     */
    tollgate_bytes words;
} tollgate_redis_state;

/** What to do next with sockets. */
tollgate_status tollgate_redis_next_action(tollgate_redis *redis,
                                           uint64_t now_ns,
                                           tollgate_redis_action *action);

/**
 * What is to be written to a link, as far as it lies together; `*len` is 0
 * when nothing is. Good until the next call. Write any part of it, call
 * tollgate_redis_transmitted, and ask again.
 */
tollgate_status tollgate_redis_transmit(tollgate_redis *redis,
                                        uint32_t link,
                                        const void **data,
                                        size_t *len);

/** `len` bytes of tollgate_redis_transmit were written. */
tollgate_status tollgate_redis_transmitted(tollgate_redis *redis, uint32_t link, size_t len);

/**
 * Where bytes from a link are to be put. `*size` is 0 when there is no
 * connection, or no room before tollgate_redis_process. Good until the next
 * call; then call tollgate_redis_received.
 */
tollgate_status tollgate_redis_receive(tollgate_redis *redis,
                                       uint32_t link,
                                       void **buffer,
                                       size_t *size);

/** `len` bytes were put where tollgate_redis_receive said. */
tollgate_status tollgate_redis_received(tollgate_redis *redis, uint32_t link, size_t len);

/** The connection that was asked for is there. */
tollgate_status tollgate_redis_connected(tollgate_redis *redis, uint32_t link, uint64_t now_ns);

/**
 * The connection is gone, or could not be opened. What came before is still
 * read by tollgate_redis_process, which is to be called next.
 */
tollgate_status tollgate_redis_disconnected(tollgate_redis *redis, uint32_t link, uint64_t now_ns);

/**
 * When tollgate_redis_process is to be called at the latest; may be in the
 * past. TOLLGATE_NEVER when it need not be.
 */
tollgate_status tollgate_redis_timeout(tollgate_redis *redis, uint64_t *at_ns);

/** How things are. */
tollgate_status tollgate_redis_read_state(tollgate_redis *redis,
                                          uint64_t now_ns,
                                          tollgate_redis_state *state);

/* A ready-made client for programs that have threads ----------------------- */

/** Room for the word in a tollgate_client_stats, with its final NUL. */
#define TOLLGATE_TROUBLE_SIZE 16u

/**
 * Limits that many machines share through Redis, with connections, threads
 * and a clock of its own: all that a threaded program needs. It is made of
 * memory of the library's own, and given back with tollgate_client_free. A
 * process that forks makes its client after the fork.
 */
typedef struct tollgate_client tollgate_client;

/**
 * How Redis is reached, and shared. Zeros stand for the defaults, but for
 * `struct_size`, `url` and `instance`. Plain data.
 */
typedef struct tollgate_client_config {
    /** sizeof(tollgate_client_config). */
    uint32_t struct_size;
    /** Connections, each with a thread of its own; 1 to 64. Default 2. */
    uint32_t connections;
    /**
     * Where Redis is: "redis://[user:password@]host[:port][/db]", over TLS
     * "rediss://...", "unix:///path[?db=1&user=...&pass=...]";
     * "redis+cluster://[user:password@]host:port[,host:port...]", any nodes
     * of a cluster; "redis+sentinel://[user:password@]host:port[,...]/name[/db]",
     * Sentinels and the name of the master that they watch; over TLS
     * "rediss+cluster" and "rediss+sentinel". What is not a letter, digit or
     * one of "-._~" in a name or password is percent-encoded.
     */
    tollgate_bytes url;
    /**
     * The part of every limit that this region has, as in
     * tollgate_redis_config; NULL for the whole.
     */
    tollgate_bytes region;
    /**
     * For TLS, as PEM: the authorities that are trusted, and no others; NULL
     * for the system's.
     */
    tollgate_bytes tls_authorities;
    /** This client's certificate, as PEM; NULL for none. */
    tollgate_bytes tls_certificate;
    /** The private key of that certificate, as PEM. */
    tollgate_bytes tls_key;
    /**
     * How long a connection may take, in nanoseconds; no request waits for
     * it. 1 ms to 60 s. Default 250 ms.
     */
    uint64_t connect_timeout_ns;
    /**
     * How long a request waits for policies that name no timeout, in
     * nanoseconds; 100,000 to 10,000,000,000. Default 5 ms.
     */
    uint64_t timeout_ns;
    /**
     * Machines that share the limits: each falls back to its piece while
     * Redis is away; 1 to 10,000. Default 1.
     */
    uint64_t instances;
    /**
     * Which of them this one is, from 0, or TOLLGATE_NO_INSTANCE: the
     * remainders of divisions are then given to nobody.
     */
    uint64_t instance;
    /**
     * Requests that may wait at a time, and calls that nobody waits for; more
     * are decided without Redis. 1 to 65,536. Default 1,024.
     */
    uint32_t waiting;
    /**
     * Keys whose tokens and denials are remembered; 8 to 16,777,216. Default
     * 4,096.
     */
    uint32_t keys;
    /**
     * Requests in flight under concurrency limits that can be released before
     * they expire; up to 16,777,216. Default 1,024.
     */
    uint32_t holds;
    /**
     * Parts of the memory that threads lock on their own; 1 to 64. Default:
     * as many as there are processors, at most 16.
     */
    uint32_t stores;
    /**
     * Keys of the table of what counts on this machine, and of all while
     * Redis is away; as in tollgate_table_config. Default 65,536.
     */
    uint64_t capacity;
    /** Its rows, for concurrency limits and sliding logs. Default 1,024. */
    uint64_t rows;
    /** Entries of a row. Default 128. */
    uint64_t row_entries;
} tollgate_client_config;

/** What a client has done, and how it is. Plain data. */
typedef struct tollgate_client_stats {
    /** TOLLGATE_BREAKER_CLOSED to TOLLGATE_BREAKER_HALF_OPEN. */
    uint32_t breaker;
    /** Connections that are up. */
    uint32_t connections;
    /**
     * The last thing that went wrong with Redis, in a word such as "timeout",
     * "disconnected" or "auth"; a C string, empty if nothing ever did.
     */
    char trouble[TOLLGATE_TROUBLE_SIZE];
    /** What was asked, and how it went. */
    tollgate_store_snapshot store;
} tollgate_client_stats;

/**
 * Makes a client of a rules document: takes all memory, starts threads, and
 * waits for a first connection, for at most `connect_timeout_ns`. A Redis
 * that is away is no error: requests are decided as their policies'
 * `on_store_error` says until it is there.
 *
 * `message`: NULL, or room for `message_size` bytes that on an error receives
 * what is wrong, as in tollgate_rules_parse; it never repeats the URL.
 * Errors: TOLLGATE_ERR_PARSE for the document, TOLLGATE_ERR_UNSUPPORTED for a
 * limit in it that cannot be counted where it should be, or threads that the
 * system does not give, TOLLGATE_ERR_ARGUMENT for the URL or certificates,
 * TOLLGATE_ERR_RANGE for a number.
 */
tollgate_status tollgate_client_create(const tollgate_client_config *config,
                                       const char *rules,
                                       size_t len,
                                       tollgate_client **client,
                                       char *message,
                                       size_t message_size);

/**
 * Gives a client back: what its leases still hold goes back to Redis, for
 * which this waits, for at most about a second. NULL is legal, and does
 * nothing. Nobody else may use it any more.
 *
 * `client` is NULL or comes from tollgate_client_create, and was not freed.
 */
void tollgate_client_free(tollgate_client *client);

/**
 * How many header fields requests must bring along, by the rules as they are
 * now. Concurrent calls are fine.
 */
tollgate_status tollgate_client_header_count(const tollgate_client *client, size_t *count);

/**
 * Copies the name of such a header field, in lower case; no NUL follows.
 * TOLLGATE_NAME_SIZE is always enough. Allocates. Concurrent calls are fine.
 * Errors: TOLLGATE_ERR_RANGE past the last one, TOLLGATE_ERR_SIZE for a
 * buffer that is too small.
 */
tollgate_status tollgate_client_header(const tollgate_client *client,
                                       size_t index,
                                       char *buffer,
                                       size_t size,
                                       size_t *len);

/**
 * Asks all limits of a request, all or none. Sleeps while Redis is asked, for
 * at most the longest timeout of the policies that apply; any other answer
 * comes at once. Any number of threads may call it. Errors:
 * TOLLGATE_ERR_ARGUMENT for a wrong struct_size or header_count.
 */
tollgate_status tollgate_client_check(const tollgate_client *client,
                                      const tollgate_attributes *attributes,
                                      tollgate_answer *answer);

/**
 * The request is over: gives back its units in flight. Needed only under
 * concurrency limits; of no effect a second time. Any number of threads may
 * call it.
 */
tollgate_status tollgate_client_release(const tollgate_client *client,
                                        const tollgate_answer *answer);

/**
 * Other rules from the next request on; when they are refused, the old ones
 * stay. What was counted stays counted where the limits are the same.
 * Allocates; concurrent calls are fine. `message` and errors as in
 * tollgate_client_create.
 */
tollgate_status tollgate_client_reload(const tollgate_client *client,
                                       const char *rules,
                                       size_t len,
                                       char *message,
                                       size_t message_size);

/** Reads all counters, one after the other. Concurrent calls are fine. */
tollgate_status tollgate_client_read(const tollgate_client *client,
                                     tollgate_client_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* TOLLGATE_H */
