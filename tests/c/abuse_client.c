/*
 * The client with every pointer NULL, misaligned, or leading to what was never made; numbers past
 * their ranges; URLs and documents that are none; and with no Redis to be had at all.
 */
#include "abuse.h"

static const char RULES[] =
    "{ \"identity\": { \"api_key\": { \"header\": \"x-api-key\", \"required\": true } },"
    "  \"policies\": [ { \"name\": \"p\", \"key\": [\"api_key\"],"
    "    \"limits\": [ { \"rate\": \"2/d\" } ], \"store\": \"redis\" } ] }";

static tollgate_client *client;

static tollgate_bytes bytes(const char *text) {
    tollgate_bytes made;
    made.data = text;
    made.len = text ? strlen(text) : 0;
    return made;
}

static tollgate_client_config good_client(void) {
    tollgate_client_config made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.url = bytes("redis://:secret@127.0.0.1:1"); /* nobody listens there */
    made.instance = TOLLGATE_NO_INSTANCE;
    made.connections = 1;
    made.stores = 2;
    return made;
}

static tollgate_attributes good_attributes(const tollgate_bytes *headers) {
    tollgate_attributes made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.method = bytes("GET");
    made.path = bytes("/");
    made.headers = headers;
    made.header_count = 1;
    return made;
}

static void pointers_are_checked(void) {
    tollgate_client_config good = good_client(), bad = good_client();
    tollgate_bytes key = bytes("k");
    tollgate_attributes request = good_attributes(&key);
    size_t len = strlen(RULES);
    REFUSES(NULL, tollgate_client_create(NULL, RULES, len, &out.client, NULL, 0));
    REFUSES(NULL, tollgate_client_create(&good, NULL, len, &out.client, NULL, 0));
    REFUSES(NULL, tollgate_client_create(&good, NULL, 0, &out.client, NULL, 0));
    REFUSES(NULL, tollgate_client_create(&good, RULES, len, NULL, NULL, 0));
    bad.url = bytes(NULL);
    REFUSES(NULL, tollgate_client_create(&bad, RULES, len, &out.client, NULL, 0));
    REFUSES(NULL, tollgate_client_header_count(NULL, &out.count));
    REFUSES(NULL, tollgate_client_header_count(client, NULL));
    REFUSES(NULL, tollgate_client_header(NULL, 0, out.text, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_client_header(client, 0, NULL, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_client_header(client, 0, NULL, 0, &out.len));
    REFUSES(NULL, tollgate_client_header(client, 0, out.text, sizeof out.text, NULL));
    REFUSES(NULL, tollgate_client_check(NULL, &request, &out.answer));
    REFUSES(NULL, tollgate_client_check(client, NULL, &out.answer));
    REFUSES(NULL, tollgate_client_check(client, &request, NULL));
    REFUSES(NULL, tollgate_client_release(NULL, &out.answer));
    REFUSES(NULL, tollgate_client_release(client, NULL));
    REFUSES(NULL, tollgate_client_reload(NULL, RULES, len, NULL, 0));
    REFUSES(NULL, tollgate_client_reload(client, NULL, len, NULL, 0));
    REFUSES(NULL, tollgate_client_read(NULL, &out.client_stats));
    REFUSES(NULL, tollgate_client_read(client, NULL));
    request.headers = NULL;
    REFUSES(NULL, tollgate_client_check(client, &request, &out.answer));
    tollgate_client_free(NULL);

    static union {
        uint64_t numbers[1024];
        char bytes[8192];
    } zeros;
    const tollgate_client *never_made = (const tollgate_client *)zeros.numbers;
    request = good_attributes(&key);
    REFUSES(ARGUMENT, tollgate_client_check(never_made, &request, &out.answer));
    REFUSES(ARGUMENT, tollgate_client_read(never_made, &out.client_stats));
    REFUSES(ALIGN, tollgate_client_header_count((const tollgate_client *)(void *)(zeros.bytes + 1),
                                                &out.count));
    tollgate_client_free((tollgate_client *)zeros.numbers);
}

#define REFUSES_CLIENT(error, field, value)                                                        \
    do {                                                                                           \
        tollgate_client_config bad = good_client();                                                \
        char reason[256] = "";                                                                     \
        bad.field = (value);                                                                       \
        REFUSES(error, tollgate_client_create(&bad, RULES, strlen(RULES), &out.client, reason,     \
                                              sizeof reason));                                     \
        HOLDS(strstr(reason, "secret") == NULL);                                                   \
    } while (0)

static void values_are_checked(void) {
    static const char *const urls[] = {
        "",
        "secret",
        "http://secret",
        "redis://",
        "redis://:secret@host:99999",
        "redis+cluster://:secret@",
        "redis+sentinel://:secret@host:1",
        "redis://\xff",
    };
    for (size_t i = 0; i < COUNT(urls); i++) {
        REFUSES_CLIENT(ARGUMENT, url, bytes(urls[i]));
    }
    REFUSES_CLIENT(ARGUMENT, struct_size, 0);
    REFUSES_CLIENT(ARGUMENT, struct_size, sizeof(tollgate_client_config) + 1);
    REFUSES_CLIENT(ARGUMENT, tls_certificate, bytes("alone"));
    REFUSES_CLIENT(ARGUMENT, tls_key, bytes("alone"));
    REFUSES_CLIENT(RANGE, region, bytes("3/2"));
    REFUSES_CLIENT(RANGE, connections, 65);
    REFUSES_CLIENT(RANGE, connections, UINT32_MAX);
    REFUSES_CLIENT(RANGE, stores, 65);
    REFUSES_CLIENT(RANGE, connect_timeout_ns, 1);
    REFUSES_CLIENT(RANGE, connect_timeout_ns, UINT64_MAX);
    REFUSES_CLIENT(RANGE, timeout_ns, 1);
    REFUSES_CLIENT(RANGE, timeout_ns, UINT64_MAX);
    REFUSES_CLIENT(RANGE, instances, UINT64_MAX);
    REFUSES_CLIENT(RANGE, instance, 1);
    REFUSES_CLIENT(RANGE, waiting, UINT32_MAX);
    REFUSES_CLIENT(RANGE, holds, UINT32_MAX);
    REFUSES_CLIENT(RANGE, capacity, UINT64_MAX);
    REFUSES_CLIENT(RANGE, rows, UINT64_MAX);
    REFUSES_CLIENT(RANGE, row_entries, UINT64_MAX);

    tollgate_client_config good = good_client();
    char reason[256];
    REFUSES(PARSE, tollgate_client_create(&good, "{", 1, &out.client, reason, sizeof reason));
    HOLDS(strlen(reason) > 8);
    REFUSES(PARSE, tollgate_client_create(&good, "\xff", 1, &out.client, reason, sizeof reason));
    REFUSES(PARSE, tollgate_client_reload(client, "{}", 2, reason, sizeof reason));
    static const char DENSE[] =
        "{ \"policies\": [ { \"name\": \"p\", \"limits\": [ { \"algorithm\": \"sliding_log\","
        " \"rate\": \"100000/s\" } ] } ] }";
    REFUSES(UNSUPPORTED, tollgate_client_reload(client, DENSE, strlen(DENSE), reason, 8));
    HOLDS(strlen(reason) == 7);

    tollgate_bytes key = bytes("k");
    tollgate_attributes bad = good_attributes(&key);
    bad.struct_size = 0;
    REFUSES(ARGUMENT, tollgate_client_check(client, &bad, &out.answer));
    bad = good_attributes(&key);
    bad.reserved = 1;
    REFUSES(ARGUMENT, tollgate_client_check(client, &bad, &out.answer));
    bad = good_attributes(&key);
    bad.header_count = SIZE_MAX;
    REFUSES(ARGUMENT, tollgate_client_check(client, &bad, &out.answer));
    bad = good_attributes(&key);
    bad.path.len = SIZE_MAX;
    REFUSES(SIZE, tollgate_client_check(client, &bad, &out.answer));
    REFUSES(RANGE, tollgate_client_header(client, 1, out.text, sizeof out.text, &out.len));
    REFUSES(SIZE, tollgate_client_header(client, 0, out.text, 3, &out.len));
}

static void without_redis_every_request_is_answered(void) {
    tollgate_bytes key = bytes("k");
    tollgate_attributes request = good_attributes(&key);
    for (int i = 0; i < 20; i++) {
        ACCEPTS(tollgate_client_check(client, &request, &out.answer));
        HOLDS(out.answer.allowed == (i < 2) && out.answer.status == (i < 2 ? 0u : 429u));
        HOLDS(out.answer.source == TOLLGATE_SOURCE_FALLBACK && out.answer.degraded == 1);
        decision = out.answer.layers[0].decision;
        ACCEPTS(tollgate_counters_record(&counters, &decision, 0));
        ACCEPTS(tollgate_client_release(client, &out.answer));
        memset(&out, 0xFF, sizeof out); /* an answer that was never given */
        ACCEPTS(tollgate_client_release(client, &out.answer));
    }
    ACCEPTS(tollgate_counters_read(&counters, &out.snapshot));
    HOLDS(out.snapshot.allowed == 2 && out.snapshot.rejected == 18);
    key.data = NULL;
    ACCEPTS(tollgate_client_check(client, &request, &out.answer));
    HOLDS(!out.answer.allowed && out.answer.status == 401);
    ACCEPTS(tollgate_client_header_count(client, &out.count));
    HOLDS(out.count == 1);
    ACCEPTS(tollgate_client_header(client, 0, out.text, sizeof out.text, &out.len));
    HOLDS(out.len == 9 && memcmp(out.text, "x-api-key", 9) == 0);
    ACCEPTS(tollgate_client_reload(client, RULES, strlen(RULES), NULL, 0));
    ACCEPTS(tollgate_client_read(client, &out.client_stats));
    HOLDS(out.client_stats.connections == 0 && out.client_stats.store.fallback_local == 20);
    HOLDS(out.client_stats.breaker != TOLLGATE_BREAKER_CLOSED);
    HOLDS(strcmp(out.client_stats.trouble, "disconnected") == 0);
    memset(&out, UNTOUCHED, sizeof out);
}

int main(void) {
    prepare();
    tollgate_client_config good = good_client();
    ACCEPTS(tollgate_client_create(&good, RULES, strlen(RULES), &client, NULL, 0));
    pointers_are_checked();
    values_are_checked();
    without_redis_every_request_is_answered();
    tollgate_client_free(client);
    return finish();
}
