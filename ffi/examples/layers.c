/*
 * Several limits at once: each user gets 3 requests a minute, the tenant 5 in all, and no request
 * counts anywhere unless all limits admit it. One that was admitted and then failed is given back.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <tollgate.h>

static const char *const LAYERS[] = {"user", "tenant"};

static void require(tollgate_status status, const char *what) {
    if (status != TOLLGATE_OK) {
        fprintf(stderr, "%s: %s\n", what, tollgate_status_str(status));
        exit(1);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *make_table(tollgate_table *table) {
    tollgate_table_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.capacity = 1000;
    size_t size, align;
    void *memory;
    require(tollgate_table_layout(&config, &size, &align), "layout");
    if (getentropy(config.seed, sizeof config.seed) || posix_memalign(&memory, align, size)) {
        fputs("no memory or no seed\n", stderr);
        exit(1);
    }
    require(tollgate_table_init(memory, size, &config, table), "init");
    return memory;
}

static void set(tollgate_request *request, const char *key, const tollgate_limit *limit) {
    request->key = key;
    request->key_len = strlen(key);
    request->limit = limit;
    request->cost = 1;
}

/* One request of a user; `works` tells how it went after it was admitted. */
static void serve(const tollgate_table *table, const char *user, const tollgate_limit limits[2],
                  int works) {
    tollgate_request layers[2];
    tollgate_decision decisions[2];
    size_t tightest;
    set(&layers[0], user, &limits[0]);
    set(&layers[1], "tenant-1", &limits[1]);
    require(tollgate_table_check_all(table, layers, 2, now_ns(), decisions, NULL, &tightest),
            "check");
    if (!decisions[tightest].allowed) {
        printf("%s: denied by the limit of the %s\n", user, LAYERS[tightest]);
    } else if (works) {
        printf("%s: allowed, %d left of the %s's\n", user, (int)decisions[tightest].remaining,
               LAYERS[tightest]);
    } else {
        require(tollgate_table_refund_all(table, layers, 2, now_ns()), "refund");
        printf("%s: allowed, but failed, so given back\n", user);
    }
}

int main(void) {
    const char *const texts[] = {"3/m", "5/m"};
    tollgate_limit limits[2];
    for (int i = 0; i < 2; i++) {
        require(tollgate_limit_parse(texts[i], strlen(texts[i]), TOLLGATE_TOKEN_BUCKET, &limits[i],
                                     NULL, 0),
                texts[i]);
    }
    tollgate_table table;
    void *memory = make_table(&table);
    serve(&table, "ann", limits, 0);
    serve(&table, "ann", limits, 1);
    serve(&table, "ann", limits, 1);
    serve(&table, "ann", limits, 1);
    serve(&table, "ann", limits, 1);
    serve(&table, "bob", limits, 1);
    serve(&table, "bob", limits, 1);
    serve(&table, "bob", limits, 1);
    free(memory);
    return 0;
}
