/*
 * The functions of a shared store with every pointer NULL, misaligned, or leading to what was never
 * made; configurations that cannot be; a server that sends anything but replies; and requests that
 * are cancelled, answered and released in the wrong order.
 */
#include "abuse.h"

static const char DOCUMENT[] =
    "{ \"identity\": { \"api_key\": { \"header\": \"x-api-key\" } },"
    "  \"policies\": [ { \"name\": \"p\", \"key\": [\"api_key\"], \"limits\": [ { \"rate\": "
    "\"2/m\" } ], \"store\": \"redis\", \"on_store_error\": \"allow\", \"timeout\": \"50ms\" } ] }";

static const uint64_t seed[2] = {1, 2};
static tollgate_rules *rules;
static tollgate_redis *redis;
static tollgate_store_metrics *metrics;
static tollgate_bytes header, address;

static tollgate_redis_config good(void) {
    tollgate_redis_config made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    address.data = "127.0.0.1:1";
    address.len = 11;
    made.addresses = &address;
    made.address_count = 1;
    made.instance = TOLLGATE_NO_INSTANCE;
    return made;
}

static tollgate_attributes request(void) {
    tollgate_attributes made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.method.data = "GET";
    made.method.len = 3;
    made.path.data = "/";
    made.path.len = 1;
    header.data = "k";
    header.len = 1;
    made.headers = &header;
    made.header_count = 1;
    return made;
}

static void pointers_are_checked(void) {
    tollgate_redis_config config = good();
    tollgate_attributes asked = request();
    tollgate_hold hold;
    uint64_t pending, user;
    memset(&hold, 0, sizeof hold);

    REFUSES(NULL, tollgate_redis_create(NULL, &out.redis, NULL, 0));
    REFUSES(NULL, tollgate_redis_create(&config, NULL, NULL, 0));
    config.addresses = NULL;
    REFUSES(NULL, tollgate_redis_create(&config, &out.redis, NULL, 0));
    config = good();
    tollgate_redis_free(NULL);
    REFUSES(NULL, tollgate_redis_accepts(NULL, rules, NULL, 0));
    REFUSES(NULL, tollgate_redis_accepts(&config, NULL, NULL, 0));

    REFUSES(NULL, tollgate_redis_check(NULL, rules, &table, metrics, &asked, 1, 0, &out.answer,
                                       &out.pending));
    REFUSES(NULL, tollgate_redis_check(redis, NULL, &table, metrics, &asked, 1, 0, &out.answer,
                                       &out.pending));
    REFUSES(NULL, tollgate_redis_check(redis, rules, NULL, metrics, &asked, 1, 0, &out.answer,
                                       &out.pending));
    REFUSES(NULL, tollgate_redis_check(redis, rules, &table, NULL, &asked, 1, 0, &out.answer,
                                       &out.pending));
    REFUSES(NULL, tollgate_redis_check(redis, rules, &table, metrics, NULL, 1, 0, &out.answer,
                                       &out.pending));
    REFUSES(NULL,
            tollgate_redis_check(redis, rules, &table, metrics, &asked, 1, 0, NULL, &out.pending));
    REFUSES(NULL,
            tollgate_redis_check(redis, rules, &table, metrics, &asked, 1, 0, &out.answer, NULL));

    REFUSES(NULL, tollgate_redis_answer(NULL, &table, metrics, 1, &pending, &user, &out.answer));
    REFUSES(NULL, tollgate_redis_answer(redis, NULL, metrics, 1, &pending, &user, &out.answer));
    REFUSES(NULL, tollgate_redis_answer(redis, &table, NULL, 1, &pending, &user, &out.answer));
    REFUSES(NULL, tollgate_redis_answer(redis, &table, metrics, 1, NULL, &user, &out.answer));
    REFUSES(NULL, tollgate_redis_answer(redis, &table, metrics, 1, &pending, NULL, &out.answer));
    REFUSES(NULL, tollgate_redis_answer(redis, &table, metrics, 1, &pending, &user, NULL));

    REFUSES(NULL, tollgate_redis_cancel(NULL, &table, metrics, 1, 1));
    REFUSES(NULL, tollgate_redis_cancel(redis, NULL, metrics, 1, 1));
    REFUSES(NULL, tollgate_redis_cancel(redis, &table, NULL, 1, 1));
    REFUSES(NULL, tollgate_redis_release(NULL, &table, metrics, 1, &hold));
    REFUSES(NULL, tollgate_redis_release(redis, NULL, metrics, 1, &hold));
    REFUSES(NULL, tollgate_redis_release(redis, &table, NULL, 1, &hold));
    REFUSES(NULL, tollgate_redis_release(redis, &table, metrics, 1, NULL));
    REFUSES(NULL, tollgate_redis_process(NULL, &table, metrics, 1));
    REFUSES(NULL, tollgate_redis_process(redis, NULL, metrics, 1));
    REFUSES(NULL, tollgate_redis_process(redis, &table, NULL, 1));
    REFUSES(NULL, tollgate_redis_drain(NULL, &table, metrics, 1));
    REFUSES(NULL, tollgate_redis_drain(redis, NULL, metrics, 1));
    REFUSES(NULL, tollgate_redis_drain(redis, &table, NULL, 1));

    REFUSES(NULL, tollgate_redis_next_action(NULL, 1, &out.action));
    REFUSES(NULL, tollgate_redis_next_action(redis, 1, NULL));
    REFUSES(NULL, tollgate_redis_transmit(NULL, 0, &out.data, &out.len));
    REFUSES(NULL, tollgate_redis_transmit(redis, 0, NULL, &out.len));
    REFUSES(NULL, tollgate_redis_transmit(redis, 0, &out.data, NULL));
    REFUSES(NULL, tollgate_redis_transmitted(NULL, 0, 1));
    REFUSES(NULL, tollgate_redis_receive(NULL, 0, &out.room, &out.len));
    REFUSES(NULL, tollgate_redis_receive(redis, 0, NULL, &out.len));
    REFUSES(NULL, tollgate_redis_receive(redis, 0, &out.room, NULL));
    REFUSES(NULL, tollgate_redis_received(NULL, 0, 1));
    REFUSES(NULL, tollgate_redis_connected(NULL, 0, 1));
    REFUSES(NULL, tollgate_redis_disconnected(NULL, 0, 1));
    REFUSES(NULL, tollgate_redis_timeout(NULL, &out.pending));
    REFUSES(NULL, tollgate_redis_timeout(redis, NULL));
    REFUSES(NULL, tollgate_redis_read_state(NULL, 1, &out.state));
    REFUSES(NULL, tollgate_redis_read_state(redis, 1, NULL));
    REFUSES(NULL, tollgate_store_metrics_layout(NULL, &out.align));
    REFUSES(NULL, tollgate_store_metrics_layout(&out.size, NULL));
    REFUSES(NULL, tollgate_store_metrics_read(NULL, &out.store));
    REFUSES(NULL, tollgate_store_metrics_read(metrics, NULL));

    static union {
        uint64_t numbers[2048];
        char bytes[16384];
    } zeros;
    REFUSES(ARGUMENT, tollgate_redis_timeout((tollgate_redis *)zeros.numbers, &out.pending));
    REFUSES(ALIGN,
            tollgate_redis_timeout((tollgate_redis *)(void *)(zeros.bytes + 1), &out.pending));
    REFUSES(ALIGN, tollgate_store_metrics_read(
                       (const tollgate_store_metrics *)(void *)(zeros.bytes + 1), &out.store));
}

static void configurations_are_checked(void) {
    char message[256];
    tollgate_bytes many[2];
    tollgate_redis_config bad = good();
    bad.struct_size = 0;
    REFUSES(ARGUMENT, tollgate_redis_create(&bad, &out.redis, NULL, 0));
    REFUSES(ARGUMENT, tollgate_redis_accepts(&bad, rules, NULL, 0));
    bad = good();
    bad.reserved = 1;
    REFUSES(ARGUMENT, tollgate_redis_create(&bad, &out.redis, NULL, 0));
    for (int i = 0; i < 11; i++) {
        bad = good();
        switch (i) {
        case 0:
            bad.flags = 2;
            break;
        case 1:
            bad.address_count = 0;
            break;
        case 2:
            bad.timeout_ns = 99999;
            break;
        case 3:
            bad.timeout_ns = UINT64_MAX;
            break;
        case 4:
            bad.instances = 10001;
            break;
        case 5:
            bad.instance = 1;
            break;
        case 6:
            bad.workers = 1025;
            break;
        case 7:
            bad.waiting = 65537;
            break;
        case 8:
            bad.holds = UINT32_MAX;
            break;
        case 9:
            bad.region.data = "2/1";
            bad.region.len = 3;
            break;
        default:
            many[0] = many[1] = address;
            many[1].len = 0;
            bad.addresses = many;
            bad.address_count = 2;
        }
        memset(message, 0, sizeof message);
        REFUSES(RANGE, tollgate_redis_create(&bad, &out.redis, message, sizeof message));
        HOLDS(strlen(message) > 8);
        REFUSES(RANGE, tollgate_redis_create(&bad, &out.redis, message, 1));
        HOLDS(message[0] == 0);
    }
    bad = good();
    ACCEPTS(tollgate_redis_accepts(&bad, rules, NULL, 0));
    bad.region.data = "1/3";
    bad.region.len = 3;
    REFUSES(UNSUPPORTED, tollgate_redis_accepts(&bad, rules, message, sizeof message));
    HOLDS(strncmp(message, "policy p: ", 10) == 0);
}

static void links_that_are_not_there_do_nothing(void) {
    const void *data;
    void *room;
    size_t len;
    uint32_t numbers[] = {0, 1, 63, 64, UINT32_MAX};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        ACCEPTS(tollgate_redis_transmit(redis, numbers[i], &data, &len));
        HOLDS(len == 0);
        ACCEPTS(tollgate_redis_transmitted(redis, numbers[i], SIZE_MAX));
        ACCEPTS(tollgate_redis_receive(redis, numbers[i], &room, &len));
        HOLDS(len == 0);
        ACCEPTS(tollgate_redis_received(redis, numbers[i], SIZE_MAX));
        ACCEPTS(tollgate_redis_connected(redis, numbers[i], 1));
        ACCEPTS(tollgate_redis_disconnected(redis, numbers[i], 1));
    }
}

/* Connects, as far as the engine asks for it; writes everything away. */
static void serve(uint64_t now) {
    const void *data;
    size_t len;
    tollgate_redis_action action;
    for (;;) {
        ACCEPTS(tollgate_redis_next_action(redis, now, &action));
        if (action.kind == TOLLGATE_ACTION_NONE) {
            break;
        }
        if (action.kind == TOLLGATE_ACTION_CONNECT) {
            HOLDS(action.address.len == 11 && action.link == 0);
            ACCEPTS(tollgate_redis_connected(redis, action.link, now));
        } else {
            HOLDS(action.reason.len > 0);
        }
    }
    for (;;) {
        ACCEPTS(tollgate_redis_transmit(redis, 0, &data, &len));
        if (len == 0) {
            break;
        }
        ACCEPTS(tollgate_redis_transmitted(redis, 0, len));
    }
}

static void receive(const char *bytes, size_t len, uint64_t now) {
    void *room;
    size_t size;
    ACCEPTS(tollgate_redis_receive(redis, 0, &room, &size));
    if (len <= size) {
        memcpy(room, bytes, len);
        ACCEPTS(tollgate_redis_received(redis, 0, len));
    }
    ACCEPTS(tollgate_redis_process(redis, &table, metrics, now));
}

/* A connection to a server that has answered nothing yet, which it has to before it is asked. */
static uint64_t connected(uint64_t now) {
    tollgate_redis_state state;
    uint64_t at;
    for (int i = 0; i < 100; i++) {
        ACCEPTS(tollgate_redis_process(redis, &table, metrics, now));
        serve(now);
        ACCEPTS(tollgate_redis_read_state(redis, now, &state));
        HOLDS(state.links == 1 && state.breaker <= TOLLGATE_BREAKER_HALF_OPEN && !state.ready);
        HOLDS(state.trouble.data && state.trouble.len < 16 && state.words.len <= 128);
        ACCEPTS(tollgate_redis_timeout(redis, &at));
        now = at != TOLLGATE_NEVER && at > now ? at : now + 1;
    }
    return now;
}

static void nothing_that_a_server_sends_harms(void) {
    static const char *const garbage[] = {
        "",
        "$-1\r\n",
        "*-1\r\n",
        "*1000000\r\n",
        "$99999999999999999999\r\n",
        ":9223372036854775807\r\n",
        "-ERR no\r\n",
        "-WRONGPASS\r\n",
        "-MOVED 99999 :\r\n",
        "-NOSCRIPT\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "*3\r\n:1\r\n:0\r\n:0\r\n",
        "*64\r\n:1\r\n",
        "\r\n\r\n\r\n",
    };
    tollgate_attributes asked = request();
    tollgate_answer answer;
    uint64_t now = SECOND, number, user;
    for (size_t i = 0; i < COUNT(garbage); i++) {
        now = connected(now + SECOND);
        uint64_t pending = 0;
        ACCEPTS(tollgate_redis_check(redis, rules, &table, metrics, &asked, now, 77, &answer,
                                     &pending));
        serve(now);
        receive(garbage[i], strlen(garbage[i]), now);
        serve(now);
        now += SECOND / 10; /* past the policy's timeout */
        ACCEPTS(tollgate_redis_process(redis, &table, metrics, now));
        serve(now);
        if (pending) {
            ACCEPTS(tollgate_redis_answer(redis, &table, metrics, now, &number, &user, &answer));
            HOLDS(number == pending && user == 77 && answer.count == 1);
            HOLDS(answer.source == TOLLGATE_SOURCE_ASKED ||
                  answer.source == TOLLGATE_SOURCE_FALLBACK);
            HOLDS(answer.allowed || strcmp(answer.policy, "p") == 0);
        }
        ACCEPTS(tollgate_redis_answer(redis, &table, metrics, now, &number, &user, &answer));
        HOLDS(number == 0);
        ACCEPTS(tollgate_redis_disconnected(redis, 0, now));
    }
}

static void cancelled_requests_are_told_nothing(void) {
    tollgate_attributes asked = request();
    tollgate_answer answer;
    tollgate_store_snapshot snapshot;
    uint64_t now = connected(10000 * (uint64_t)SECOND), number, user, last = 0;
    for (int i = 0; i < 2000; i++) {
        uint64_t pending = 0;
        ACCEPTS(
            tollgate_redis_check(redis, rules, &table, metrics, &asked, now, 7, &answer, &pending));
        ACCEPTS(tollgate_redis_cancel(redis, &table, metrics, now, pending));
        ACCEPTS(tollgate_redis_cancel(redis, &table, metrics, now, pending)); /* not waiting */
        ACCEPTS(tollgate_redis_cancel(redis, &table, metrics, now, last));
        ACCEPTS(tollgate_redis_cancel(redis, &table, metrics, now, (uint64_t)i << 32 | 5));
        last = pending;
    }
    ACCEPTS(tollgate_redis_cancel(redis, &table, metrics, now, UINT64_MAX));
    ACCEPTS(tollgate_redis_process(redis, &table, metrics, now + SECOND));
    ACCEPTS(tollgate_redis_answer(redis, &table, metrics, now, &number, &user, &answer));
    HOLDS(number == 0);
    ACCEPTS(tollgate_store_metrics_read(metrics, &snapshot));
    HOLDS(snapshot.waiting == 0 && snapshot.fallback_allow > 0);
}

static void holds_of_anyone_are_legal(void) {
    tollgate_hold hold;
    for (int fill = 0; fill < 256; fill++) {
        memset(&hold, fill, sizeof hold);
        ACCEPTS(tollgate_redis_release(redis, &table, metrics, SECOND, &hold));
        hold.row = UINT64_MAX; /* the store's own */
        ACCEPTS(tollgate_redis_release(redis, &table, metrics, UINT64_MAX, &hold));
    }
}

static void attributes_are_checked(void) {
    tollgate_attributes bad = request();
    tollgate_top *top;
    size_t size, align;
    bad.header_count = 0;
    REFUSES(ARGUMENT, tollgate_redis_check(redis, rules, &table, metrics, &bad, 1, 0, &out.answer,
                                           &out.pending));
    ACCEPTS(tollgate_top_layout(&size, &align));
    top = (tollgate_top *)allocate(size);
    memset((void *)top, 0, size);
    tollgate_answer denied;
    memset(&denied, 0, sizeof denied);
    denied.count = UINT32_MAX;
    denied.layers[0].outcome = TOLLGATE_OUTCOME_DENIED;
    REFUSES(ARGUMENT, tollgate_top_record_answer(top, rules, &table, &bad, &denied));
    bad = request();
    REFUSES(NULL, tollgate_top_record_answer(NULL, rules, &table, &bad, &denied));
    REFUSES(NULL, tollgate_top_record_answer(top, NULL, &table, &bad, &denied));
    REFUSES(NULL, tollgate_top_record_answer(top, rules, NULL, &bad, &denied));
    REFUSES(NULL, tollgate_top_record_answer(top, rules, &table, NULL, &denied));
    REFUSES(NULL, tollgate_top_record_answer(top, rules, &table, &bad, NULL));
    ACCEPTS(tollgate_top_record_answer(top, rules, &table, &bad, &denied));
    ACCEPTS(tollgate_top_read(top, out.top, 2, &size));
    HOLDS(size == 1 && out.top[0].count == 1 && strcmp(out.top[0].policy, "p") == 0);
    free(top);
    memset(&out, UNTOUCHED, sizeof out);
}

int main(void) {
    size_t size, align;
    prepare();
    (void)counters, (void)decision; /* of no use here */
    ACCEPTS(tollgate_rules_parse(DOCUMENT, strlen(DOCUMENT), seed, 0, &rules, NULL, 0));
    ACCEPTS(tollgate_store_metrics_layout(&size, &align));
    HOLDS(align == 64);
    metrics = (tollgate_store_metrics *)allocate(size);
    memset((void *)metrics, 0, size);
    tollgate_redis_config config = good();
    ACCEPTS(tollgate_redis_create(&config, &redis, NULL, 0));
    memset(&out, UNTOUCHED, sizeof out);

    pointers_are_checked();
    configurations_are_checked();
    links_that_are_not_there_do_nothing();
    nothing_that_a_server_sends_harms();
    cancelled_requests_are_told_nothing();
    holds_of_anyone_are_legal();
    attributes_are_checked();

    uint64_t at;
    ACCEPTS(tollgate_redis_timeout(redis, &at));
    ACCEPTS(tollgate_redis_drain(redis, &table, metrics, UINT64_MAX));
    ACCEPTS(tollgate_redis_process(redis, &table, metrics, UINT64_MAX));
    ACCEPTS(tollgate_redis_process(redis, &table, metrics, 0));
    tollgate_redis_free(redis);
    tollgate_rules_free(rules);
    free(metrics);
    return finish();
}
