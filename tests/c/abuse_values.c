/*
 * Every function of tollgate.h with numbers at and past both ends of their ranges, short and
 * corrupt memory, and text that is no text. Each call has to answer with the right status, leave
 * its outputs as they were when that is an error, and neither crash nor touch a byte that is not
 * its own: run it under sanitizers too.
 */
#include "abuse.h"

#define REFUSES_FIELD(error, field, value)                                                         \
    do {                                                                                           \
        bad = good_config();                                                                       \
        bad.field = (value);                                                                       \
        REFUSES(error, tollgate_limit_init(&bad, &out.limit, NULL, 0));                            \
    } while (0)

static void numbers_of_a_limit(void) {
    tollgate_limit_config bad = good_config();
    const uint32_t sizes[] = {0, 1, sizeof bad - 1, sizeof bad + 1, UINT32_MAX};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        bad.struct_size = sizes[i];
        REFUSES(ARGUMENT, tollgate_limit_init(&bad, &out.limit, NULL, 0));
        REFUSES(ARGUMENT, tollgate_limit_describe(&limits[0], &bad));
    }
    REFUSES_FIELD(ARGUMENT, algorithm, ALGORITHMS);
    REFUSES_FIELD(ARGUMENT, algorithm, UINT32_MAX);
    REFUSES_FIELD(ARGUMENT, anchor, 2);
    REFUSES_FIELD(ARGUMENT, anchor, UINT32_MAX);
    REFUSES_FIELD(RANGE, anchor, TOLLGATE_ANCHOR_FIRST_REQUEST); /* of a token bucket */
    REFUSES_FIELD(ARGUMENT, reserved, 1);
    REFUSES_FIELD(ARGUMENT, reserved, UINT32_MAX);
    REFUSES_FIELD(RANGE, limit, 0);
    REFUSES_FIELD(RANGE, limit, UINT64_C(1) << 32);
    REFUSES_FIELD(RANGE, limit, UINT64_MAX);
    REFUSES_FIELD(RANGE, period_ns, 0);
    REFUSES_FIELD(RANGE, period_ns, 999);
    REFUSES_FIELD(RANGE, period_ns, UINT64_C(316224000000000001));
    REFUSES_FIELD(RANGE, period_ns, UINT64_MAX);
    REFUSES_FIELD(RANGE, burst, UINT64_C(1) << 32);
    REFUSES_FIELD(RANGE, burst, UINT64_MAX);
    bad = good_config();
    bad.limit = 1;
    bad.period_ns = UINT64_C(316224000000000000);
    bad.burst = UINT32_MAX; /* 40 billion years to refill */
    REFUSES(RANGE, tollgate_limit_init(&bad, &out.limit, NULL, 0));
    for (uint32_t windowed = TOLLGATE_FIXED_WINDOW; windowed < ALGORITHMS; windowed++) {
        bad = good_config();
        bad.algorithm = windowed;
        bad.burst = 11;
        REFUSES(RANGE, tollgate_limit_init(&bad, &out.limit, NULL, 0));
    }
}

static void both_ends_of_a_limit(void) {
    const uint64_t ends[][2] = {{1, 1000},
                                {UINT32_MAX, 1000},
                                {1, UINT64_C(316224000000000000)},
                                {UINT32_MAX, UINT64_C(316224000000000000)}};
    for (size_t i = 0; i < COUNT(ends); i++) {
        for (uint32_t algorithm = 0; algorithm < ALGORITHMS; algorithm++) {
            tollgate_limit_config end = good_config(), told = good_config();
            tollgate_limit limit, again;
            char text[128];
            size_t len;
            end.algorithm = algorithm;
            end.limit = ends[i][0];
            end.period_ns = ends[i][1];
            ACCEPTS(tollgate_limit_init(&end, &limit, NULL, 0));
            ACCEPTS(tollgate_limit_format(&limit, text, sizeof text, &len));
            HOLDS(strlen(text) == len);
            ACCEPTS(tollgate_limit_parse(text, len, TOLLGATE_TOKEN_BUCKET, &again, NULL, 0));
            ACCEPTS(tollgate_limit_describe(&again, &told));
            HOLDS(told.algorithm == algorithm && told.limit == end.limit);
            HOLDS(told.period_ns == end.period_ns && told.burst == end.limit);
        }
    }
}

static void text_of_a_limit(void) {
    REFUSES(PARSE, tollgate_limit_parse(NULL, 0, 0, &out.limit, NULL, 0));
    REFUSES(PARSE, tollgate_limit_parse("", 0, 0, &out.limit, NULL, 0));
    REFUSES(PARSE, tollgate_limit_parse("1/s", 4, 0, &out.limit, NULL, 0)); /* its NUL counts */
    REFUSES(PARSE, tollgate_limit_parse("\xff\xfe", 2, 0, &out.limit, NULL, 0));
    REFUSES(PARSE, tollgate_limit_parse("10/s\xc3", 5, 0, &out.limit, NULL, 0));
    REFUSES(RANGE, tollgate_limit_parse("0/s", 3, 0, &out.limit, NULL, 0));
    REFUSES(ARGUMENT, tollgate_limit_parse("1/s", 3, ALGORITHMS, &out.limit, NULL, 0));
    REFUSES(ARGUMENT, tollgate_limit_parse("1/s", 3, UINT32_MAX, &out.limit, NULL, 0));
    REFUSES(SIZE, tollgate_limit_parse("1/s", SIZE_MAX, 0, &out.limit, NULL, 0));
    REFUSES(PARSE, tollgate_algorithm_parse(NULL, 0, &out.algorithm));
    REFUSES(PARSE, tollgate_algorithm_parse("\xff", 1, &out.algorithm));
    REFUSES(PARSE, tollgate_algorithm_parse("concurrency", 12, &out.algorithm));
    REFUSES(SIZE, tollgate_algorithm_parse("concurrency", SIZE_MAX, &out.algorithm));

    const tollgate_limit *log = &limits[TOLLGATE_SLIDING_LOG];
    char text[17];
    size_t len;
    REFUSES(SIZE, tollgate_limit_format(log, out.text, 0, &out.len));
    REFUSES(SIZE, tollgate_limit_format(log, out.text, 1, &out.len));
    REFUSES(SIZE, tollgate_limit_format(log, out.text, 16, &out.len)); /* no room for its NUL */
    REFUSES(SIZE, tollgate_limit_format(log, out.text, SIZE_MAX, &out.len));
    ACCEPTS(tollgate_limit_format(log, text, 17, &len));
    HOLDS(len == 16 && strcmp(text, "sliding_log 10/s") == 0);
    ACCEPTS(tollgate_limit_format(log, text, 17, NULL));
}

/* A reason is a C string that ends within its room, whatever the error. */
static void messages(void) {
    const char reason[] =
        "limit text: expected a unit of time (ns, us, ms, s, m, h or d) at byte 3";
    tollgate_limit_config bad = good_config();
    bad.reserved = 1;
    for (size_t size = 0; size < 130; size++) {
        char *message = (char *)allocate(size + 1); /* whose last byte is not theirs */
        REFUSES(PARSE, tollgate_limit_parse("10/q", 4, 0, &out.limit, message, size));
        if (size > 0) {
            HOLDS(strlen(message) == (size < sizeof reason ? size : sizeof reason) - 1);
            HOLDS(memcmp(message, reason, strlen(message)) == 0);
        }
        memset(message, UNTOUCHED, size);
        REFUSES(ARGUMENT, tollgate_limit_init(&bad, &out.limit, message, size));
        HOLDS(size == 0 || memchr(message, 0, size));
        memset(message, UNTOUCHED, size);
        REFUSES(NULL, tollgate_limit_parse("1/s", 3, 0, NULL, message, size));
        HOLDS(size == 0 || memchr(message, 0, size));
        HOLDS(is_untouched(message + size, 1));
        free(message);
    }
    REFUSES(SIZE, tollgate_limit_parse("1/s", 3, 0, &out.limit, out.text, SIZE_MAX));
    tollgate_limit limit;
    ACCEPTS(tollgate_limit_parse("1/s", 3, 0, &limit, out.text, sizeof out.text));
    HOLDS(is_untouched(out.text, sizeof out.text)); /* no error, no message */
}

static void numbers_of_a_table(void) {
    tollgate_table_config bad = config;
    const uint32_t sizes[] = {0, sizeof bad - 1, sizeof bad + 1, UINT32_MAX, sizeof bad};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        bad.struct_size = sizes[i];
        bad.flags = sizes[i] == sizeof bad ? 2 : 0;
        REFUSES(ARGUMENT, tollgate_table_layout(&bad, &out.size, &out.align));
        REFUSES(ARGUMENT, tollgate_table_init(memory, memory_size, &bad, &out.table));
        REFUSES(ARGUMENT, tollgate_table_attach(memory, memory_size, &bad, &out.table));
    }
    const uint64_t most = UINT64_C(1) << 40, longest = 1 << 24;
    const uint64_t illegal[][3] = {
        {0, 0, 0},           {most + 1, 0, 0},   {UINT64_MAX, 0, 0},
        {4, 1, 0},           {4, 0, 1},          {4, most + 1, 1},
        {4, UINT64_MAX, 1},  {4, 1, UINT64_MAX}, {4, UINT64_MAX, UINT64_MAX},
        {4, 1, longest + 1}, {4, most, longest},
    };
    for (size_t i = 0; i < COUNT(illegal); i++) {
        bad = config;
        bad.capacity = illegal[i][0];
        bad.rows = illegal[i][1];
        bad.row_entries = illegal[i][2];
        REFUSES(RANGE, tollgate_table_layout(&bad, &out.size, &out.align));
        REFUSES(RANGE, tollgate_table_init(memory, memory_size, &bad, &out.table));
        if (bad.capacity == 4) {
            REFUSES(RANGE,
                    tollgate_table_capacity(1 << 20, bad.rows, bad.row_entries, &out.capacity));
        }
    }
    size_t size, align;
    tollgate_table still;
    bad = config;
    bad.capacity = most;
    ACCEPTS(tollgate_table_layout(&bad, &size, &align));
    REFUSES(SIZE, tollgate_table_init(memory, memory_size, &bad, &out.table));
    ACCEPTS(tollgate_table_attach(memory, memory_size, &config, &still)); /* it was never harmed */
}

/* The largest capacity fits, and one key more does not. */
static void capacities(void) {
    tollgate_table_config fitting = config;
    size_t least, size, align;
    uint64_t capacity;
    fitting.rows = fitting.row_entries = 0;
    fitting.capacity = 1;
    ACCEPTS(tollgate_table_layout(&fitting, &least, &align));
    REFUSES(SIZE, tollgate_table_capacity(0, 0, 0, &out.capacity));
    REFUSES(SIZE, tollgate_table_capacity(least - 1, 0, 0, &out.capacity));
    for (size_t room = least; room < least + 8192; room += room < least + 600 ? 1 : 37) {
        ACCEPTS(tollgate_table_capacity(room, 0, 0, &capacity));
        fitting.capacity = capacity;
        ACCEPTS(tollgate_table_layout(&fitting, &size, &align));
        HOLDS(size <= room && capacity % 4 == 0);
        fitting.capacity++;
        ACCEPTS(tollgate_table_layout(&fitting, &size, &align));
        HOLDS(size > room);
    }
    ACCEPTS(tollgate_table_capacity(SIZE_MAX, 0, 0, &capacity));
    HOLDS(capacity == UINT64_C(1) << 40);
}

static void short_memory_of_buckets(void) {
    for (uint32_t algorithm = 0; algorithm < TOLLGATE_CONCURRENCY; algorithm++) {
        size_t size, align;
        tollgate_bucket *whole;
        ACCEPTS(tollgate_bucket_layout(&limits[algorithm], &size, &align));
        for (size_t less = 1; less < size; less++) {
            void *room = allocate(size - less);
            REFUSES(SIZE, tollgate_bucket_init(room, size - less, &limits[algorithm], &out.bucket));
            HOLDS(is_untouched(room, size - less));
            free(room);
        }
        void *room = allocate(size);
        REFUSES(SIZE, tollgate_bucket_init(room, 0, &limits[algorithm], &out.bucket));
        ACCEPTS(tollgate_bucket_init(room, size, &limits[algorithm], &whole));
        for (size_t less = 1; less <= size; less++) {
            REFUSES(SIZE, tollgate_bucket_attach(room, size - less, &out.bucket));
        }
        ACCEPTS(tollgate_bucket_attach(room, size, &whole));
        free(room);
    }
}

static void short_memory_of_tables(void) {
    for (size_t less = 1; less < memory_size; less += less < 200 ? 1 : 61) {
        const size_t size = memory_size - less;
        void *room = allocate(size);
        REFUSES(SIZE, tollgate_table_init(room, size, &config, &out.table));
        REFUSES(SIZE, tollgate_table_attach(memory, size, NULL, &out.table));
        REFUSES(SIZE, tollgate_table_attach(memory, size, &config, &out.table));
        if (less < 1000) {
            memcpy(room, memory, size); /* so that reading past its end is seen */
            REFUSES(SIZE, tollgate_table_attach(room, size, NULL, &out.table));
        }
        free(room);
    }
    REFUSES(SIZE, tollgate_table_init(memory, 0, &config, &out.table));
    REFUSES(SIZE, tollgate_table_init(memory, SIZE_MAX, &config, &out.table));
    REFUSES(SIZE, tollgate_table_attach(memory, 0, NULL, &out.table));
    REFUSES(SIZE, tollgate_table_attach(memory, SIZE_MAX, NULL, &out.table));
}

static void memory_that_holds_something_else(void) {
    unsigned char *bytes = (unsigned char *)allocate(memory_size);
    uint64_t random = UINT64_C(88172645463325252); /* xorshift */
    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < memory_size; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes[i] = round == 0 ? 0 : (unsigned char)random;
        }
        REFUSES(MISMATCH, tollgate_table_attach(bytes, memory_size, NULL, &out.table));
        REFUSES(MISMATCH, tollgate_table_attach(bytes, memory_size, &config, &out.table));
        REFUSES(MISMATCH, tollgate_bucket_attach(bytes, memory_size, &out.bucket));
    }
    free(bytes);
    REFUSES(MISMATCH, tollgate_bucket_attach(memory, memory_size, &out.bucket));
    REFUSES(SIZE, tollgate_table_attach(bucket_memory, 127, NULL, &out.table));

    tollgate_table view;
    tollgate_table_config other = config;
    other.capacity = 128;
    REFUSES(MISMATCH, tollgate_table_attach(memory, memory_size, &other, &out.table));
    other = config;
    other.rows = 7;
    REFUSES(MISMATCH, tollgate_table_attach(memory, memory_size, &other, &out.table));
    other = config;
    other.capacity = UINT64_MAX;
    REFUSES(MISMATCH, tollgate_table_attach(memory, memory_size, &other, &out.table));
    other = config;
    other.row_entries = 9;
    REFUSES(MISMATCH, tollgate_table_attach(memory, memory_size, &other, &out.table));
    other = config;
    other.capacity = 61; /* which is rounded up to what the table has */
    other.seed[0] = 99;  /* which only the table's maker chooses */
    ACCEPTS(tollgate_table_attach(memory, memory_size, &other, &view));
}

/* Every call answers, whatever the memory says. */
static void use(const tollgate_table *view) {
    for (size_t i = 0; i < ALGORITHMS; i++) {
        tollgate_decision answer;
        tollgate_hold hold;
        ACCEPTS(tollgate_table_check(view, "k", 1, &limits[i], 1, SECOND, &answer));
        ACCEPTS(tollgate_table_peek(view, "other", 5, &limits[i], 1, SECOND, &answer));
        ACCEPTS(tollgate_table_refund(view, "k", 1, &limits[i], 1, SECOND));
        if (i == TOLLGATE_CONCURRENCY && !tollgate_table_accepts(view, &limits[i])) {
            ACCEPTS(tollgate_table_acquire(view, "k", 1, &limits[i], 1, SECOND, &answer, &hold));
            ACCEPTS(tollgate_table_release(view, &hold));
        }
    }
    tollgate_table_stats stats;
    uint64_t live;
    ACCEPTS(tollgate_table_stats_read(view, &stats));
    ACCEPTS(tollgate_table_live(view, SECOND, &live));
}

/* Words 0 and 1 of a table say what it is, words 2 to 4 what it holds. */
static void headers_with_a_flipped_bit(void) {
    unsigned char *bytes = (unsigned char *)allocate(memory_size);
    tollgate_table view;
    for (size_t bit = 0; bit < 128 * 8; bit++) {
        ACCEPTS(tollgate_table_init(bytes, memory_size, &config, &view));
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (bit < 5 * 64) {
            REFUSES(MISMATCH, tollgate_table_attach(bytes, memory_size, &config, &out.table));
        }
        if (bit < 2 * 64) {
            REFUSES(MISMATCH, tollgate_table_attach(bytes, memory_size, NULL, &out.table));
        } else if (tollgate_table_attach(bytes, memory_size, NULL, &view) == TOLLGATE_OK) {
            use(&view);
        }
    }
    for (size_t bit = 0; bit < 64; bit++) {
        tollgate_bucket *one;
        ACCEPTS(tollgate_bucket_init(bytes, memory_size, &limits[0], &one));
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        REFUSES(MISMATCH, tollgate_bucket_attach(bytes, memory_size, &out.bucket));
        REFUSES(ARGUMENT, tollgate_bucket_check(one, 1, 0, out.decisions));
    }
    free(bytes);
}

static void legal(const tollgate_decision *answer, uint64_t cost) {
    HOLDS(answer->remaining <= 10 && answer->limit == 10);
    HOLDS(answer->allowed <= 1 && answer->reserved == 0);
    HOLDS(answer->allowed || answer->retry_after_ns > 0);
    HOLDS(cost <= 10 || (!answer->allowed && answer->retry_after_ns == TOLLGATE_NEVER));
}

/* Any cost and any time are legal: what can never fit is denied for ever, and nothing wraps. */
static void costs_and_times_of_buckets(void) {
    const uint64_t costs[] = {0, 1, 10, 11, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX};
    const uint64_t times[] = {0, 1, SECOND, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX, 0};
    for (uint32_t algorithm = 0; algorithm < TOLLGATE_CONCURRENCY; algorithm++) {
        size_t size, align;
        tollgate_bucket *one;
        tollgate_decision answer;
        ACCEPTS(tollgate_bucket_layout(&limits[algorithm], &size, &align));
        void *room = allocate(size);
        ACCEPTS(tollgate_bucket_init(room, size, &limits[algorithm], &one));
        for (size_t t = 0; t < COUNT(times); t++) {
            for (size_t c = 0; c < COUNT(costs); c++) {
                ACCEPTS(tollgate_bucket_check(one, costs[c], times[t], &answer));
                legal(&answer, costs[c]);
                ACCEPTS(tollgate_bucket_peek(one, costs[c], times[t], &answer));
                legal(&answer, costs[c]);
                ACCEPTS(tollgate_bucket_set_limit(one, &limits[algorithm], times[t]));
            }
            /* More is given back than was ever taken; full is still no more than full. */
            ACCEPTS(tollgate_bucket_refund(one, UINT64_MAX, times[t]));
            ACCEPTS(tollgate_bucket_peek(one, 0, times[t], &answer));
            legal(&answer, 0);
        }
        free(room);
    }
}

static void costs_and_times_of_tables(void) {
    const uint64_t costs[] = {0, 1, 10, 11, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX};
    const uint64_t times[] = {0, 1, SECOND, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX, 0};
    for (uint32_t algorithm = 0; algorithm < ALGORITHMS; algorithm++) {
        const tollgate_limit *limit = &limits[algorithm];
        tollgate_decision answer;
        tollgate_hold hold;
        for (size_t t = 0; t < COUNT(times); t++) {
            for (size_t c = 0; c < COUNT(costs); c++) {
                ACCEPTS(tollgate_table_check(&table, "k", 1, limit, costs[c], times[t], &answer));
                legal(&answer, costs[c]);
                ACCEPTS(tollgate_table_peek(&table, "k", 1, limit, costs[c], times[t], &answer));
                legal(&answer, costs[c]);
                if (algorithm == TOLLGATE_CONCURRENCY) {
                    ACCEPTS(tollgate_table_acquire(&table, "k", 1, limit, costs[c], times[t],
                                                   &answer, &hold));
                    legal(&answer, costs[c]);
                    HOLDS(hold.units == (answer.allowed ? costs[c] : 0));
                }
            }
            ACCEPTS(tollgate_table_refund(&table, "k", 1, limit, UINT64_MAX, times[t]));
            ACCEPTS(tollgate_table_peek(&table, "k", 1, limit, 0, times[t], &answer));
            legal(&answer, 0);
        }
    }
}

static uint64_t left_after_check(const tollgate_table *view, const void *key, size_t key_len) {
    tollgate_decision answer;
    ACCEPTS(tollgate_table_check(view, key, key_len, &limits[0], 1, SECOND, &answer));
    return answer.remaining;
}

static void keys(void) {
    const size_t megabyte = 1 << 20;
    char *long_key = (char *)allocate(megabyte);
    void *room = allocate(memory_size);
    tollgate_table fresh;
    ACCEPTS(tollgate_table_init(room, memory_size, &config, &fresh));
    HOLDS(left_after_check(&fresh, NULL, 0) == 9);
    HOLDS(left_after_check(&fresh, "any", 0) == 8); /* the same, empty key */
    HOLDS(left_after_check(&fresh, long_key, megabyte) == 9);
    HOLDS(left_after_check(&fresh, long_key, megabyte - 1) == 9);
    HOLDS(left_after_check(&fresh, long_key, megabyte) == 8);
    HOLDS(left_after_check(&fresh, "a\0b", 3) == 9);
    HOLDS(left_after_check(&fresh, "a\0c", 3) == 9);
    HOLDS(left_after_check(&fresh, "a\0b", 3) == 8);
    HOLDS(left_after_check(&fresh, "a", 1) == 9);
    free(room);
    free(long_key);

    tollgate_decision *answer = out.decisions;
    const tollgate_limit *limit = &limits[0], *flight = &limits[TOLLGATE_CONCURRENCY];
    REFUSES(SIZE, tollgate_table_check(&table, "k", SIZE_MAX, limit, 1, 0, answer));
    REFUSES(SIZE, tollgate_table_peek(&table, "k", SIZE_MAX, limit, 1, 0, answer));
    REFUSES(SIZE, tollgate_table_refund(&table, "k", SIZE_MAX, limit, 1, 0));
    REFUSES(SIZE, tollgate_table_acquire(&table, "k", SIZE_MAX, flight, 1, 0, answer, out.holds));
}

static void counts(void) {
    const size_t illegal[] = {0, COUNT(requests), SIZE_MAX / sizeof *requests, SIZE_MAX};
    for (size_t i = 0; i < COUNT(illegal); i++) {
        REFUSES(RANGE, tollgate_table_check_all(&table, requests, illegal[i], 0, out.decisions,
                                                out.holds, &out.tightest));
        REFUSES(RANGE, tollgate_table_refund_all(&table, requests, illegal[i], 0));
    }
    REFUSES(SIZE, tollgate_table_check_batch(&table, requests, SIZE_MAX, 0, out.decisions));
    ACCEPTS(tollgate_table_check_batch(&table, NULL, 0, 0, NULL));

    tollgate_decision answers[COUNT(requests)];
    tollgate_hold held[TOLLGATE_MAX_LAYERS];
    size_t tightest;
    void *room = allocate(memory_size);
    tollgate_table fresh;
    ACCEPTS(tollgate_table_init(room, memory_size, &config, &fresh));
    ACCEPTS(tollgate_table_check_all(&fresh, requests, 1, SECOND, answers, NULL, &tightest));
    HOLDS(tightest == 0 && answers[0].allowed);
    ACCEPTS(tollgate_table_check_all(&fresh, requests, TOLLGATE_MAX_LAYERS, SECOND, answers, held,
                                     &tightest));
    HOLDS(tightest < TOLLGATE_MAX_LAYERS && answers[tightest].allowed);
    ACCEPTS(tollgate_table_refund_all(&fresh, requests, TOLLGATE_MAX_LAYERS, SECOND));
    ACCEPTS(tollgate_table_check_batch(&fresh, requests, COUNT(requests), SECOND, answers));
    for (size_t i = 0; i < COUNT(requests); i++) {
        HOLDS(answers[i].allowed);
    }
    tollgate_hold invented; /* by nobody's acquire */
    for (int byte = 0; byte < 256; byte++) {
        memset(&invented, byte, sizeof invented);
        ACCEPTS(tollgate_table_release(&fresh, &invented));
    }
    free(room);
}

/* A log or a concurrency limit finds no rows, or too short ones, and is told so. */
static void limits_without_a_place(void) {
    const tollgate_limit *flight = &limits[TOLLGATE_CONCURRENCY];
    tollgate_table_config small = config;
    tollgate_table rowless;
    tollgate_decision answer;
    tollgate_hold hold;
    size_t size, align, tightest;
    small.rows = small.row_entries = 0;
    ACCEPTS(tollgate_table_layout(&small, &size, &align));
    void *room = allocate(size);
    ACCEPTS(tollgate_table_init(room, size, &small, &rowless));
    for (uint32_t rowed = TOLLGATE_SLIDING_LOG; rowed < ALGORITHMS; rowed++) {
        tollgate_request asked = requests[0];
        asked.limit = &limits[rowed];
        REFUSES(UNSUPPORTED, tollgate_table_accepts(&rowless, asked.limit));
        ACCEPTS(tollgate_table_check(&rowless, "k", 1, asked.limit, 1, 0, &answer));
        HOLDS(!answer.allowed && answer.retry_after_ns == TOLLGATE_NEVER);
        ACCEPTS(tollgate_table_refund(&rowless, "k", 1, asked.limit, 1, 0));
        ACCEPTS(tollgate_table_check_all(&rowless, &asked, 1, 0, &answer, &hold, &tightest));
        HOLDS(!answer.allowed && answer.retry_after_ns == TOLLGATE_NEVER);
    }
    REFUSES(UNSUPPORTED,
            tollgate_table_acquire(&rowless, "k", 1, flight, 1, 0, out.decisions, out.holds));
    REFUSES(UNSUPPORTED,
            tollgate_table_acquire(&table, "k", 1, &limits[0], 1, 0, out.decisions, out.holds));
    free(room);

    tollgate_limit_config longer = good_config();
    tollgate_limit long_log;
    longer.algorithm = TOLLGATE_SLIDING_LOG;
    longer.limit = config.row_entries + 1;
    ACCEPTS(tollgate_limit_init(&longer, &long_log, NULL, 0));
    REFUSES(UNSUPPORTED, tollgate_table_accepts(&table, &long_log));
    ACCEPTS(tollgate_table_check(&table, "k", 1, &long_log, 1, 0, &answer));
    HOLDS(!answer.allowed && answer.retry_after_ns == TOLLGATE_NEVER);

    REFUSES(UNSUPPORTED, tollgate_bucket_layout(flight, &out.size, &out.align));
    REFUSES(UNSUPPORTED, tollgate_bucket_init(bucket_memory, bucket_size, flight, &out.bucket));
    REFUSES(UNSUPPORTED, tollgate_bucket_set_limit(bucket, &limits[TOLLGATE_SLIDING_LOG], 0));
    REFUSES(UNSUPPORTED, tollgate_bucket_set_limit(bucket, flight, 0));
}

/* Decisions that nobody made, the longest name there is, and room that is one byte short. */
static void http_answers(void) {
    const tollgate_limit *limit = &limits[0];
    tollgate_decision odd;
    char quotes[200], buffer[TOLLGATE_HTTP_PROBLEM_SIZE];
    tollgate_http_field fields[TOLLGATE_HTTP_FIELDS_MAX];
    size_t count, len;
    memset(quotes, '"', sizeof quotes);
    for (int byte = 0; byte < 256; byte += 51) {
        memset(&odd, byte, sizeof odd);
        ACCEPTS(tollgate_http_problem(429, quotes, 200, &odd, buffer, sizeof buffer, &len));
        REFUSES(SIZE, tollgate_http_problem(429, quotes, 200, &odd, out.text, len - 1, &out.len));
        REFUSES(SIZE, tollgate_http_problem(429, quotes, 200, &odd, out.text, 0, &out.len));
        ACCEPTS(tollgate_http_problem(429, NULL, 0, &odd, buffer, sizeof buffer, &len));
        for (uint32_t family = 0; family <= TOLLGATE_FIELDS_RATELIMIT; family++) {
            ACCEPTS(tollgate_http_fields(family, quotes, 200, limit, &odd, buffer,
                                         TOLLGATE_HTTP_BUFFER_SIZE, fields, &count));
            HOLDS(count <= TOLLGATE_HTTP_FIELDS_MAX);
            odd.allowed = 0;
            odd.retry_after_ns = 1;
            ACCEPTS(tollgate_http_fields(family, NULL, 0, limit, &odd, buffer,
                                         TOLLGATE_HTTP_BUFFER_SIZE, fields, &count));
            HOLDS(count >= 1);
            const tollgate_http_field *last = &fields[count - 1];
            const size_t needed = (size_t)(last->value - buffer) + last->value_len;
            REFUSES(SIZE, tollgate_http_fields(family, NULL, 0, limit, &odd, out.text, needed - 1,
                                               out.fields, &out.count));
            ACCEPTS(
                tollgate_http_fields(family, NULL, 0, limit, &odd, buffer, needed, fields, &count));
        }
    }
}

static void http_values(void) {
    const tollgate_limit *limit = &limits[0];
    const size_t size = sizeof out.text;
    REFUSES(ARGUMENT, tollgate_http_fields(TOLLGATE_FIELDS_RATELIMIT + 1, "p", 1, limit, &decision,
                                           out.text, size, out.fields, &out.count));
    REFUSES(ARGUMENT, tollgate_http_fields(UINT32_MAX, "p", 1, limit, &decision, out.text, size,
                                           out.fields, &out.count));
    REFUSES(PARSE, tollgate_http_fields(3, "\xff", 1, limit, &decision, out.text, size, out.fields,
                                        &out.count));
    REFUSES(SIZE, tollgate_http_fields(3, "p", SIZE_MAX, limit, &decision, out.text, size,
                                       out.fields, &out.count));
    REFUSES(SIZE, tollgate_http_fields(3, "p", 1, limit, &decision, out.text, SIZE_MAX, out.fields,
                                       &out.count));
    const uint32_t statuses[] = {0, 200, 399, 600, 65536 + 429, UINT32_MAX};
    for (size_t i = 0; i < COUNT(statuses); i++) {
        REFUSES(RANGE,
                tollgate_http_problem(statuses[i], "p", 1, &decision, out.text, size, &out.len));
    }
    REFUSES(PARSE, tollgate_http_problem(429, "\xff", 1, &decision, out.text, size, &out.len));
    REFUSES(SIZE, tollgate_http_problem(429, "p", SIZE_MAX, &decision, out.text, size, &out.len));
    REFUSES(SIZE, tollgate_http_problem(429, "p", 1, &decision, out.text, SIZE_MAX, &out.len));
}

static void names_and_counters(void) {
    for (int32_t status = -100; status <= 100; status++) {
        HOLDS(tollgate_status_str(status) && *tollgate_status_str(status));
    }
    HOLDS(tollgate_status_str(INT32_MIN) && tollgate_status_str(INT32_MAX));
    for (uint32_t algorithm = 0; algorithm < ALGORITHMS; algorithm++) {
        const char *name = tollgate_algorithm_str(algorithm);
        uint32_t number;
        ACCEPTS(tollgate_algorithm_parse(name, strlen(name), &number));
        HOLDS(number == algorithm);
    }
    HOLDS(!tollgate_algorithm_str(ALGORITHMS) && !tollgate_algorithm_str(UINT32_MAX));
    HOLDS(tollgate_abi_version() == TOLLGATE_ABI_VERSION && *tollgate_version());

    tollgate_decision odd;
    tollgate_counters_snapshot seen;
    memset(&odd, 0xFF, sizeof odd); /* allowed, with a delay */
    ACCEPTS(tollgate_counters_record(&counters, &odd, UINT32_MAX));
    ACCEPTS(tollgate_counters_record(&counters, &decision, 0));
    ACCEPTS(tollgate_counters_error(&counters));
    ACCEPTS(tollgate_counters_read(&counters, &seen));
    HOLDS(seen.allowed == 1 && seen.delayed_dry_run == 1 && seen.rejected == 1 && seen.errors == 1);
}

int main(void) {
    prepare();
    numbers_of_a_limit();
    both_ends_of_a_limit();
    text_of_a_limit();
    messages();
    numbers_of_a_table();
    capacities();
    short_memory_of_buckets();
    short_memory_of_tables();
    memory_that_holds_something_else();
    headers_with_a_flipped_bit();
    costs_and_times_of_buckets();
    costs_and_times_of_tables();
    keys();
    counts();
    limits_without_a_place();
    http_answers();
    http_values();
    names_and_counters();
    return finish();
}
