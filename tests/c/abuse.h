/*
 * What the abuse tests share: objects in order, for the parameters that are not under test; room
 * for every output; and REFUSES, which holds that a call answered with that error and left every
 * output as it was.
 */
#ifndef TOLLGATE_ABUSE_H
#define TOLLGATE_ABUSE_H

#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tollgate.h>

enum { UNTOUCHED = 0xA5, SECOND = 1000000000, ALGORITHMS = 6 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct {
    size_t size, align, len, tightest, count;
    uint64_t capacity, live;
    uint32_t algorithm;
    tollgate_limit limit;
    tollgate_limit_config config;
    tollgate_bucket *bucket;
    tollgate_table table;
    tollgate_decision decisions[TOLLGATE_MAX_LAYERS + 1];
    tollgate_hold holds[TOLLGATE_MAX_LAYERS + 1];
    tollgate_table_stats stats;
    tollgate_http_field fields[TOLLGATE_HTTP_FIELDS_MAX];
    tollgate_counters_snapshot snapshot;
    tollgate_rules *rules;
    tollgate_policy policy;
    tollgate_answer answer;
    const char *name;
    uint32_t family;
    tollgate_top_key top[2];
    tollgate_redis *redis;
    tollgate_redis_action action;
    tollgate_redis_state state;
    tollgate_store_snapshot store;
    uint64_t pending;
    const void *data;
    void *room;
    tollgate_client *client;
    tollgate_client_stats client_stats;
    char text[TOLLGATE_HTTP_PROBLEM_SIZE];
} out;

static tollgate_limit limits[ALGORITHMS]; /* 10 a second, by algorithm */
static tollgate_table_config config;
static tollgate_table table;
static void *memory; /* of the table */
static size_t memory_size;
static tollgate_bucket *bucket;
static void *bucket_memory;
static size_t bucket_size;
static tollgate_counters counters;
static tollgate_decision decision;
static tollgate_request requests[TOLLGATE_MAX_LAYERS + 1];

static int failures;

static void fail(int line, const char *what, tollgate_status status) {
    if (failures++ < 20) {
        fprintf(stderr, "line %d: %s: %d, %s\n", line, what, (int)status,
                tollgate_status_str(status));
    }
}

static int is_untouched(const void *bytes, size_t size) {
    const unsigned char *byte = (const unsigned char *)bytes;
    for (size_t i = 0; i < size; i++) {
        if (byte[i] != UNTOUCHED) {
            return 0;
        }
    }
    return 1;
}

static void refuses(int line, const char *what, tollgate_status expected, tollgate_status status) {
    if (status != expected) {
        fail(line, what, status);
    } else if (!is_untouched(&out, sizeof out)) {
        fail(line, "an output was written", status);
    }
    memset(&out, UNTOUCHED, sizeof out);
}

static void holds(int line, const char *what, int truth) {
    if (!truth) {
        fail(line, what, 0);
    }
}

#define REFUSES(error, call) refuses(__LINE__, #call, TOLLGATE_ERR_##error, (call))
#define ACCEPTS(call)        holds(__LINE__, #call, (call) == TOLLGATE_OK)
#define HOLDS(truth)         holds(__LINE__, #truth, (truth))

static void *allocate(size_t size) {
    void *room;
    if (posix_memalign(&room, 64, size) != 0) {
        abort();
    }
    memset(room, UNTOUCHED, size); /* init must not count on zeros */
    return room;
}

static tollgate_limit_config good_config(void) {
    tollgate_limit_config good;
    memset(&good, 0, sizeof good);
    good.struct_size = sizeof good;
    good.limit = 10;
    good.period_ns = SECOND;
    return good;
}

static void prepare(void) {
    for (uint32_t algorithm = 0; algorithm < ALGORITHMS; algorithm++) {
        tollgate_limit_config good = good_config();
        good.algorithm = algorithm;
        ACCEPTS(tollgate_limit_init(&good, &limits[algorithm], NULL, 0));
    }
    config.struct_size = sizeof config;
    config.capacity = 64;
    config.rows = 8;
    config.row_entries = 10;
    config.seed[0] = 1;
    size_t align;
    ACCEPTS(tollgate_table_layout(&config, &memory_size, &align));
    HOLDS(align == 64);
    memory = allocate(memory_size);
    ACCEPTS(tollgate_table_init(memory, memory_size, &config, &table));
    ACCEPTS(tollgate_bucket_layout(&limits[0], &bucket_size, &align));
    HOLDS(align == 64);
    bucket_memory = allocate(bucket_size);
    ACCEPTS(tollgate_bucket_init(bucket_memory, bucket_size, &limits[0], &bucket));
    for (size_t i = 0; i < COUNT(requests); i++) {
        requests[i].key = "key";
        requests[i].key_len = 3;
        requests[i].limit = &limits[i % TOLLGATE_CONCURRENCY];
        requests[i].cost = 1;
    }
    memset(&out, UNTOUCHED, sizeof out);
}

static int finish(void) {
    free(bucket_memory);
    free(memory);
    printf("%s: %d failures\n", failures ? "harmed" : "unharmed", failures);
    return failures != 0;
}

#endif
